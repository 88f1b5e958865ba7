"""Suspects from containers that grew: their names, and the lines that fill them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from msgspec.structs import replace

from memagent.components import safe_reads
from memagent.leaks.detectors.base import CodePosition
from memagent.leaks.free_memory import BoundCheck
from memagent.leaks.growing_containers import GrowingContainer
from memagent.leaks.library_calls import library_calls
from memagent.leaks.object_sizes import newest_item
from memagent.leaks.origins import creating_line, line_of_holder, site_line
from memagent.leaks.pattern_fixes import with_pattern_fix
from memagent.leaks.reachability import nearest_name
from memagent.leaks.referrers import HolderPath, ReferrerSearch
from memagent.leaks.source_lines import PASSES, SourceLine
from memagent.leaks.suspect import (
    CERTAINTIES,
    Kind,
    describe_container,
    is_cache,
    rank_suspects,
    suspect_at,
    with_sums,
)
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.user_code import UserScopes, namespace
from memagent.leaks.variable_walk import CONTAINERS
from memagent.wire.messages import Suspect

_MAX_CONTAINERS = 8
_HOST_CONFIDENCE = 0.8


def suspects_of_containers(
    growing: Sequence[GrowingContainer],
    sites: Sequence[CodePosition | None],
    lines: Sequence[Suspect],
    bounds: BoundCheck,
    budget: TimeBudget,
) -> tuple[list[Suspect], set[CodePosition]]:
    """Return the containers that have a name and a line in the script, most bytes first.

    Of many in one table, one is named, with the growth of all: the same line fills them. To name
    each would take a pass over all objects, and tell a hundredth of the growth.
    Also return the sites of those that can't grow: what is made there is no leak, either, unless
    it's more than twice as much.
    sites: the line that made the newest item of each, for those that no line visibly fills.
    lines: those that hold more and more, by a trace.
    """
    traced = {(item.file, item.line): item.bytes_per_step or 0 for item in lines}
    scopes = UserScopes()
    search = ReferrerSearch(scopes, {id(growing)}, budget)
    suspects = []
    bounded: set[CodePosition] = set()
    try:
        todo = list(zip(growing, sites, strict=True))
        for _ in range(_MAX_CONTAINERS):
            if not todo or budget.is_over():
                break
            item, site = todo.pop(0)
            holder = nearest_name(search, item.container, budget)
            same_ids = _ids_beside(holder, [other.container for other, _ in todo])
            same = [other for other, _ in todo if id(other.container) in same_ids]
            todo = [pair for pair in todo if id(pair[0].container) not in same_ids]
            rate = item.bytes_per_step
            if not bounds.can_grow(holder, rate / item.items_per_step, rate):
                if site is not None and (not rate or 2 * rate >= traced.get(site, 0)):
                    bounded.add(site)
            elif (suspect := _suspect_of(search.scopes, holder, item, site, traced)) is not None:
                suspect = _with_rate(suspect, rate + sum(other.bytes_per_step for other in same))
                suspects.append(bounds.with_fix(suspect, holder))
    finally:
        search.close()
    return rank_suspects(with_sums(suspects)), bounded


def _ids_beside(holder: HolderPath, others: Sequence[Any]) -> set[int]:
    """Return the ids of those that are in the same table as a named one, if they are many.

    A few may be filled by different lines, as attributes are.
    """
    table = holder.above[0] if holder.above else None
    if type(table) not in CONTAINERS or (type(table) is dict and "__builtins__" in table):
        return set()
    if any(namespace(owner) is table for owner in holder.above[1:2]):
        return set()
    ids = safe_reads.common_ids(table, dict.fromkeys(map(id, others)).keys())
    return ids if len(ids) >= _MAX_CONTAINERS else set()


def _with_rate(suspect: Suspect, rate: int) -> Suspect:
    return replace(suspect, bytes_per_step=rate or suspect.bytes_per_step)


def _suspect_of(
    scopes: UserScopes,
    holder: HolderPath,
    item: GrowingContainer,
    site: CodePosition | None,
    traced: Collection[CodePosition],
) -> Suspect | None:
    name = holder.name
    if name is None:
        return None
    kind: Kind = "cache" if any(map(is_cache, holder.objects)) else "host"
    newest = safe_reads.items_of(newest_item(item.container)).others
    holder = dataclasses.replace(holder, below=tuple(newest[:1]))
    line = _line_of(scopes, holder, kind, site, traced)
    if line is None:
        return None
    text = f"{name.expression}: {describe_container(item.container, kind)}"
    certainty = _HOST_CONFIDENCE * CERTAINTIES[line.strength]
    suspect = suspect_at(name, line, text, "host", item.bytes_per_step, certainty)
    return with_pattern_fix(suspect, holder.objects)


def _line_of(
    scopes: UserScopes,
    holder: HolderPath,
    kind: Kind,
    site: CodePosition | None,
    traced: Collection[CodePosition],
) -> SourceLine | None:
    """Return the line that fills a container, else the one that made its newest item."""
    name = holder.name
    if name is None:
        return None
    # a library's registry is filled by many: only a trace tells which call did
    line = line_of_holder(scopes, holder, kind) if name.is_in_script else None
    if line is not None and line.strength < PASSES and line.function.endswith("__init__"):
        line = None  # it makes the object that owns the container
    line = line or site_line(site)
    if line is not None:
        return line
    if name.is_in_script:
        return creating_line(holder, scopes.files)
    calls = library_calls(name, holder, scopes.files)
    # what makes an item comes before what fills it
    fitting = (call for call in calls if (call.file, call.line) in traced)
    return min(fitting, key=lambda call: call.line, default=None)
