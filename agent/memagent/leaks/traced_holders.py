"""Holders of what the script's lines allocate and keep, as far as a trace of allocations knows.

A line that allocates rarely keeps the result itself: `row = parse(text)` comes before
`rows.append(row)`. So search downwards from the script's variables for objects that the line made,
name what most of them are in, and find the line that fills it.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from memagent.leaks.detectors.base import CodePosition, script_position
from memagent.leaks.origins import line_of_holder
from memagent.leaks.reachability import holders_of_kept
from memagent.leaks.referrers import HolderPath
from memagent.leaks.source_lines import PASSES
from memagent.leaks.suspect import CERTAINTIES, can_grow, describe_container, suspect_at
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.user_code import UserScopes
from memagent.wire.messages import Suspect

_MAX_CPU_S = 0.5
_CONFIDENCE = 0.7

# of the module behind tracemalloc, whose own function is in Python
traceback_of: Any = tracemalloc._get_object_traceback  # type: ignore[attr-defined]


def holders_of_lines(lines: Sequence[Suspect]) -> dict[CodePosition, Suspect]:
    """Return for each line of a trace the suspect that keeps what it made, if one does.

    To be called while the objects of the whole window are traced.
    """
    scopes, budget = UserScopes(), TimeBudget(_MAX_CPU_S)
    holders: dict[CodePosition, Suspect] = {}
    for item in lines:
        site = item.file, item.line
        candidates = [] if budget.is_over() else holders_of_kept(scopes, made_at(site), budget)
        suspects = (_suspect(scopes, holder, item) for holder in candidates)
        if (suspect := next(filter(None, suspects), None)) is not None:
            holders[site] = suspect
    return holders


def made_at(site: CodePosition) -> Callable[[list[Any]], set[int]]:
    """Return a function that selects by id the objects which a line of the script made."""

    def find(items: list[Any]) -> set[int]:
        frames = map(traceback_of, items)
        return {
            id(item)
            for item, positions in zip(items, frames, strict=True)
            if positions and script_position(positions[::-1]) == site
        }

    return find


def _suspect(scopes: UserScopes, holder: HolderPath, traced: Suspect) -> Suspect | None:
    if holder.name is None or not holder.name.is_in_script or not can_grow(holder):
        return None
    line = line_of_holder(scopes, holder, "host")
    text = f"{holder.name.expression}: {describe_container(holder.container, 'host')}"
    if line is None or line.strength < PASSES:
        return replace(traced, holder=text)
    certainty = _CONFIDENCE * CERTAINTIES[line.strength]
    suspect = suspect_at(holder.name, line, text, "host", None, certainty)
    return replace(suspect, bytes_per_step=traced.bytes_per_step)
