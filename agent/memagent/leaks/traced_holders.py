"""Holders of what the script's lines allocate and keep, as far as a trace of allocations knows.

A line that allocates rarely keeps the result itself: `row = parse(text)` comes before
`rows.append(row)`. So search downwards from the script's variables for objects that the line made,
name what most of them are in, and find the line that fills it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from memagent.components import safe_reads
from memagent.leaks.detectors.base import CodePosition, script_position
from memagent.leaks.free_memory import BoundCheck
from memagent.leaks.library_calls import library_calls
from memagent.leaks.object_sizes import item_bytes
from memagent.leaks.origins import line_of_holder
from memagent.leaks.pattern_fixes import with_pattern_fix
from memagent.leaks.reachability import holders_of_kept
from memagent.leaks.referrers import HolderPath
from memagent.leaks.source_lines import PASSES
from memagent.leaks.suspect import CERTAINTIES, describe_container, suspect_at
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.traced_blocks import traceback_of
from memagent.leaks.user_code import UserScopes
from memagent.wire.messages import Suspect

_MAX_CPU_S = 0.5
_SAMPLE_SIZE = 8
_CONFIDENCE, _HOLDER_CONFIDENCE = 0.7, 0.6
"""With the line that fills a holder, and without."""


def candidates_of_lines(lines: Sequence[Suspect]) -> dict[CodePosition, list[HolderPath]]:
    """Return for each line of a trace the named objects that keep what it made, as far as some do.

    To be called while the objects of the whole window are traced.
    """
    scopes, budget = UserScopes(), TimeBudget(_MAX_CPU_S)
    candidates: dict[CodePosition, list[HolderPath]] = {}
    for site in ((item.file, item.line) for item in lines):
        holders = [] if budget.is_over() else _candidates(scopes, site, budget)
        candidates[site] = [item for item in holders if item.name and item.name.is_in_script]
    return candidates


def holders_of_lines(
    lines: Sequence[Suspect],
    candidates: Mapping[CodePosition, Sequence[HolderPath]],
    bounds: BoundCheck,
) -> dict[CodePosition, Suspect | None]:
    """Return for each line with a candidate the suspect that keeps what it made.

    It's None if what keeps it can't grow.
    """
    scopes = UserScopes()
    holders: dict[CodePosition, Suspect | None] = {}
    for item in lines:
        site = item.file, item.line
        if named := candidates[site]:
            growing = next((holder for holder in named if _can_grow(holder, bounds)), None)
            holders[site] = None
            if growing is not None:
                holders[site] = bounds.with_fix(_suspect(scopes, growing, item), growing)
    return holders


def _can_grow(holder: HolderPath, bounds: BoundCheck) -> bool:
    """Return False for what fills up; also if the size of its entries isn't known."""
    try:
        size = item_bytes(holder.container, _SAMPLE_SIZE)
    except TypeError:
        size = 0.0
    return bounds.can_grow(holder, size)


def _candidates(scopes: UserScopes, site: CodePosition, budget: TimeBudget) -> list[HolderPath]:
    """Return what most of the objects are in that a line of the script made, likely first."""

    def is_from_site(positions: Sequence[CodePosition] | None) -> bool:
        return bool(positions) and script_position(positions[::-1]) == site  # type: ignore[index]

    def find(items: list[Any]) -> set[int]:
        frames = map(traceback_of, items)
        return {
            id(item)
            for item, positions in zip(items, frames, strict=True)
            if is_from_site(positions)
        }

    def find_owners(items: list[Any]) -> set[int]:
        if not any(map(is_from_site, safe_reads.notes_of_arrays(traceback_of, *items))):
            return set()
        return {
            id(item)
            for item in items
            if any(map(is_from_site, safe_reads.notes_of_arrays(traceback_of, item)))
        }

    return holders_of_kept(scopes, find, find_owners, budget)


def _suspect(scopes: UserScopes, holder: HolderPath, traced: Suspect) -> Suspect:
    if holder.name is None:
        return traced
    line = line_of_holder(scopes, holder, "host")
    if line is None or line.strength < PASSES:
        calls = library_calls(holder.name, holder, scopes.files)
        line = next((dataclasses.replace(call, strength=PASSES) for call in calls), line)
    text = f"{holder.name.expression}: {describe_container(holder.container, 'host')}"
    if line is None or line.strength < PASSES:
        return replace(traced, holder=text, confidence=_HOLDER_CONFIDENCE)
    certainty = _CONFIDENCE * CERTAINTIES[line.strength]
    suspect = suspect_at(holder.name, line, text, "host", None, certainty)
    suspect = replace(suspect, bytes_per_step=traced.bytes_per_step)
    return with_pattern_fix(suspect, holder.objects)
