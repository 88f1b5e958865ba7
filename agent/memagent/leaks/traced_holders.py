"""Holders of what the script's lines allocate and keep, as far as a trace of allocations knows.

A line that allocates rarely keeps the result itself: `row = parse(text)` comes before
`rows.append(row)`. So search downwards from the script's variables for objects that the line made,
name what most of them are in, and find the line that fills it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import compress, repeat
from operator import contains
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from memagent.components import safe_reads
from memagent.leaks.detectors.base import CodePosition, script_position
from memagent.leaks.free_memory import BoundCheck
from memagent.leaks.library_calls import library_calls
from memagent.leaks.object_sizes import item_bytes
from memagent.leaks.origins import line_of_holder
from memagent.leaks.pattern_fixes import with_chain_fix, with_pattern_fix
from memagent.leaks.reachability import holders_of_kept
from memagent.leaks.referrers import HolderPath
from memagent.leaks.source_lines import GROWS, PASSES, SourceLine
from memagent.leaks.suspect import CERTAINTIES, describe_container, suspect_at
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.traced_blocks import traceback_of
from memagent.leaks.user_code import UserScopes
from memagent.leaks.variable_walk import CONTAINERS
from memagent.wire.messages import Suspect

_MAX_CPU_S = 0.5
_SAMPLE_SIZE = 8
_AT_ONCE = 4096
"""Objects whose allocation is looked up between two looks at the clock."""
_ENOUGH = 1024
"""Objects of a line in one container: a walk looks at the ways to 50 of them."""
_CONFIDENCE, _HOLDER_CONFIDENCE = 0.7, 0.6
"""With the line that fills a holder, and without."""
_MIN_EXPLAINED = 0.125
"""Share of a line's growth that explains it if it's of a buffer that fills up: it's an estimate."""


def candidates_of_lines(
    lines: Sequence[Suspect],
    growth_of: Callable[[Any], int | None],
    lengthening: Collection[CodePosition] = (),
) -> dict[CodePosition, list[HolderPath]]:
    """Return for each line of a trace the named objects that keep what it made, as far as some do.

    To be called while the objects of the whole window are traced. growth_of: returns how many
    entries a container has more than before, None if that's unknown. lengthening: the lines that
    make larger objects rather than more of them, so that what keeps them may be of fixed size.
    """
    scopes, budget = UserScopes(), TimeBudget(_MAX_CPU_S)
    candidates: dict[CodePosition, list[HolderPath]] = {}
    for site in ((item.file, item.line) for item in lines):
        growth = _any_growth if site in lengthening else growth_of
        holders = [] if budget.is_over() else _candidates(scopes, site, budget, growth)
        candidates[site] = [item for item in holders if _is_filled_by_script(scopes, item)]
    return candidates


def _is_filled_by_script(scopes: UserScopes, holder: HolderPath) -> bool:
    """Return True for a container of the script, and a library's if a line visibly fills it."""
    if holder.name is None or holder.name.is_in_script:
        return holder.name is not None
    line = _line_of(scopes, holder)
    return line is not None and line.strength >= PASSES


def sites_in_old_entries(
    candidates: Mapping[CodePosition, Sequence[HolderPath]], has_more: Callable[[Any], bool]
) -> dict[CodePosition, HolderPath]:
    """Return for each line the table of fixed size whose old entries get what the line makes.

    `records[key]["image"] = image` makes no table longer, but an entry that is older than the
    trace has more in it. An entry that takes the place of another is new. To be called while the
    objects of the window are traced. has_more: returns True if a container may be older, and
    has become longer.
    """

    def is_lengthened(item: Any) -> bool:
        is_container = type(item) in CONTAINERS - {tuple}
        return is_container and traceback_of(item) is None and has_more(item)

    return {
        site: holder
        for site, holders in candidates.items()
        for holder in holders[:1]
        if holder.is_link and any(map(is_lengthened, holder.below))
    }


def _any_growth(_: Any) -> int:
    return 1


def holders_of_lines(
    lines: Sequence[Suspect],
    candidates: Mapping[CodePosition, Sequence[HolderPath]],
    bounds: BoundCheck,
    growth_of: Callable[[Any], int | None] = lambda _: None,
    steps: int = 1,
    entries: Mapping[CodePosition, HolderPath] = MappingProxyType({}),
) -> dict[CodePosition, Suspect | None]:
    """Return for each line with a candidate the suspect that keeps what it made.

    It's None if what keeps it can't grow. steps: in which containers grew by `growth_of`.
    entries: tables whose entries get what a line makes.
    """
    scopes = UserScopes()
    holders: dict[CodePosition, Suspect | None] = {}
    for item in lines:
        site = item.file, item.line
        named = [
            holder
            for holder in candidates[site]
            if not _is_full_table(holder, growth_of) and _can_grow(holder, bounds)
        ]
        sure = (each for each in named if not each.is_link or _adds(_line_of(scopes, each)))
        if (holder := next(sure, None)) is not None:
            holders[site] = bounds.with_fix(_suspect(scopes, holder, item), holder)
        elif site in entries:
            text = _text(entries[site])
            holders[site] = replace(item, holder=text, confidence=_HOLDER_CONFIDENCE)
        elif not named and any(
            _explains(each, _entries(each, growth_of), (item.bytes_per_step or 0) * steps)
            for each in candidates[site]
        ):
            holders[site] = None
    return holders


def _is_full_table(holder: HolderPath, growth_of: Callable[[Any], int | None]) -> bool:
    """Return True for a dict that has kept its length: a new key takes the place of an old one.

    A line's objects are in it since those before them aren't traced.
    """
    is_table = holder.is_link and isinstance(holder.container, dict)
    return is_table and growth_of(holder.container) == 0


def _entries(holder: HolderPath, growth_of: Callable[[Any], int | None]) -> int | None:
    """Return how many entries of a holder may be new."""
    if _is_full_table(holder, growth_of):
        return len(holder.container)
    return growth_of(holder.container)


def _explains(holder: HolderPath, entries: int | None, growth_bytes: float) -> bool:
    """Return False if so many new entries of a holder are little of what a line made."""
    try:
        size = item_bytes(holder.container, _SAMPLE_SIZE) if entries else 0.0
    except TypeError:
        size = 0.0
    return not size or size * (entries or 0) >= _MIN_EXPLAINED * growth_bytes


def _can_grow(holder: HolderPath, bounds: BoundCheck) -> bool:
    """Return False for what fills up; also if the size of its entries isn't known."""
    try:
        size = item_bytes(holder.container, _SAMPLE_SIZE)
    except TypeError:
        size = 0.0
    return bounds.can_grow(holder, size)


def _candidates(
    scopes: UserScopes,
    site: CodePosition,
    budget: TimeBudget,
    growth_of: Callable[[Any], int | None],
) -> list[HolderPath]:
    """Return what most of the objects are in that a line of the script made, likely first."""

    def is_from_site(positions: Sequence[CodePosition] | None) -> bool:
        return bool(positions) and script_position(positions[::-1]) == site  # type: ignore[index]

    def find(items: list[Any]) -> set[int]:
        matches: set[int] = set()
        # the newest first: of a million, only they are looked at in time
        for end in range(len(items), 0, -_AT_ONCE):
            part = items[max(0, end - _AT_ONCE) : end]
            traced = list(map(traceback_of, part))
            # in C, as far as possible: most are older than the trace, or from other lines
            ids, frames = compress(map(id, part), traced), list(filter(None, traced))
            have_site = map(contains, frames, repeat(site))
            pairs = compress(zip(ids, frames, strict=True), have_site)
            matches.update(key for key, at in pairs if at[0] == site or is_from_site(at))
            if len(matches) >= _ENOUGH:
                break
            if budget.is_over():
                break
        return matches

    def find_owners(items: list[Any]) -> set[int]:
        if not any(map(is_from_site, safe_reads.notes_of_arrays(traceback_of, *items))):
            return set()
        return {
            id(item)
            for item in items
            if any(map(is_from_site, safe_reads.notes_of_arrays(traceback_of, item)))
        }

    return holders_of_kept(scopes, find, find_owners, budget, growth_of)


def _suspect(scopes: UserScopes, holder: HolderPath, traced: Suspect) -> Suspect:
    if holder.name is None:
        return traced
    line = _line_of(scopes, holder)
    text = _text(holder)
    if line is None or line.strength < PASSES:
        return replace(traced, holder=text, confidence=_HOLDER_CONFIDENCE)
    certainty = _CONFIDENCE * CERTAINTIES[line.strength]
    suspect = suspect_at(holder.name, line, text, "host", None, certainty)
    suspect = replace(suspect, bytes_per_step=traced.bytes_per_step)
    return with_chain_fix(with_pattern_fix(suspect, holder.objects), holder)


def _text(holder: HolderPath) -> str:
    expression = "" if holder.name is None else holder.name.expression
    return f"{expression}: {describe_container(holder.container, 'host', holder.below)}"


def _line_of(scopes: UserScopes, holder: HolderPath) -> SourceLine | None:
    """Return the line that fills a holder, or else calls the library that it belongs to."""
    line = line_of_holder(scopes, holder, "host")
    if holder.name is None or (line is not None and line.strength >= PASSES):
        return line
    calls = library_calls(holder.name, holder, scopes.files)
    return next((dataclasses.replace(call, strength=PASSES) for call in calls), line)


def _adds(line: SourceLine | None) -> bool:
    return line is not None and line.strength >= GROWS
