"""Suspects from containers that grew: their names, and the lines that fill them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from memagent.components import live_objects, safe_reads
from memagent.leaks.detectors.base import CodePosition, Work
from memagent.leaks.free_memory import BoundCheck
from memagent.leaks.growing_containers import GrowingContainer
from memagent.leaks.library_calls import library_calls
from memagent.leaks.object_sizes import newest_item
from memagent.leaks.origins import creating_line, line_of_holder, site_line
from memagent.leaks.pattern_fixes import with_pattern_fix
from memagent.leaks.reachability import nearest_names
from memagent.leaks.referrers import HolderPath, ReferrerSearch
from memagent.leaks.script_owners import ScriptOwners
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
    growing: list[GrowingContainer],
    sites: Sequence[CodePosition | None],
    lines: Sequence[Suspect],
    bounds: BoundCheck,
    budget: TimeBudget,
) -> Work[tuple[list[Suspect], set[CodePosition]]]:
    """Return the containers that have a name and a line in the script, most bytes first.

    Also return the sites of those that can't grow: what is made there is no leak, either, unless
    it's more than twice as much.
    sites: the line that made the newest item of each, for those that no line visibly fills.
    lines: those that hold more and more, by a trace.

    1. One walk from the script's variables reaches most. Each slice repeats it, and names as many
       as it has time for: between slices, only ids are kept.
    2. Training goes on for a step, in which another thread looks for the script's other owners
       (`script_owners`). A walk from these reaches the rest.
    3. A search through referrers names the others one by one: containers of a library, if a line
       that calls it was traced, and those of owners that allow no weak reference.

    Empties `growing`.
    """
    traced = {(item.file, item.line or 0): item.bytes_per_step or 0.0 for item in lines}
    naming = _Naming([*map(_row, growing, sites)], traced, bounds, budget)
    growing.clear()
    if naming.has_more:
        if budget.is_sliced:
            yield
        yield from naming.add_reached(lambda: None)
    if naming.has_more:
        owners = ScriptOwners()
        try:
            if budget.is_sliced:
                yield
            yield from naming.add_reached(owners.living)
        finally:
            owners.close()
        budget.spend(owners.thread_s)
        if traced or not owners.is_complete:
            yield from naming.add_by_referrers()
    return rank_suspects(with_sums(naming.suspects)), naming.bounded


class _Row(NamedTuple):
    """A growing container, without a reference to it."""

    id: int
    type: type
    growth: GrowingContainer
    """Its container is None."""
    site: CodePosition | None


def _row(item: GrowingContainer, site: CodePosition | None) -> _Row:
    growth = dataclasses.replace(item, container=None)
    return _Row(id(item.container), type(item.container), growth, site)


@dataclasses.dataclass
class _Naming:
    """Containers without a name so far, most bytes first, and what was found about the others.

    Of many in one table, one is named, with the growth of all, if the same line fills it and the
    one of them that grows least. Otherwise each counts for itself.
    """

    rows: list[_Row]
    traced: Mapping[CodePosition, float]
    bounds: BoundCheck
    budget: TimeBudget
    suspects: list[Suspect] = dataclasses.field(default_factory=list)
    bounded: set[CodePosition] = dataclasses.field(default_factory=set)
    rest: int = _MAX_CONTAINERS
    """How many may still be named."""

    @property
    def ids(self) -> set[int]:
        return {row.id for row in self.rows}

    @property
    def has_more(self) -> bool:
        return bool(self.rows[: self.rest]) and not self.budget.is_over()

    def add_reached(self, find_owners: Callable[[], list[Any] | None]) -> Work[None]:
        """Name all that a walk reaches, in slices.

        find_owners: returns the owners to begin at, None for the script's variables.
        """
        while not self._add_some(find_owners()):
            yield

    def _add_some(self, owners: list[Any] | None) -> bool:
        """Name some. Return False if the slice is over, and others were reached."""
        scopes = UserScopes()
        holders = nearest_names(scopes, self.ids, self.budget, owners)
        for row in [row for row in self.rows if row.id in holders]:
            if not self.has_more:
                break
            if self.rest < _MAX_CONTAINERS and self.budget.is_slice_over():
                return False
            if row in self.rows:
                self._add(scopes, row, holders)
        return True

    def _add(self, scopes: UserScopes, row: _Row, holders: Mapping[int, HolderPath]) -> None:
        self.rest -= 1
        self.rows.remove(row)
        suspect, same = self._suspect(scopes, row, holders[row.id]), self._table_mates(row, holders)
        least = next((other for other in same[::-1] if other.id in holders), None)
        if suspect and least:
            other = self._suspect(scopes, least, holders[least.id])
            if other and (suspect.file, suspect.line) != (other.file, other.line):
                self.suspects += suspect, other
                self.rows.remove(least)
                return
        self.rows = [item for item in self.rows if item not in same]
        if suspect is not None:
            rate = sum(item.growth.bytes_per_step for item in (row, *same))
            self.suspects.append(replace(suspect, bytes_per_step=rate or suspect.bytes_per_step))

    def _table_mates(self, row: _Row, holders: Mapping[int, HolderPath]) -> list[_Row]:
        """Return the others in the same table, if they are many."""
        ids = _ids_beside(holders[row.id], self.ids)
        return [other for other in self.rows if other.id in ids]

    def _suspect(self, scopes: UserScopes, row: _Row, holder: HolderPath) -> Suspect | None:
        if type(holder.container) is not row.type:  # another object has its id now
            return None
        item = dataclasses.replace(row.growth, container=holder.container)
        rate = item.bytes_per_step
        if self.bounds.can_grow(holder, rate / item.items_per_step, rate):
            suspect = _suspect_of(scopes, holder, item, row.site, self.traced)
            return suspect and self.bounds.with_fix(suspect, holder)
        if row.site is not None and (not rate or 2 * rate >= self.traced.get(row.site, 0)):
            self.bounded.add(row.site)
        return None

    def add_by_referrers(self) -> Work[None]:
        """Name the rest by what refers to them."""
        while self.has_more:
            yield from self._add_first()
            if self.has_more and self.budget.is_slice_over():
                yield

    def _add_first(self) -> Work[None]:
        search, row = ReferrerSearch(UserScopes(), set(), self.budget), self.rows[0]
        items = search.hold(live_objects.with_ids({row.id}))
        try:
            if items:
                holder = yield from search.name_in_slices(items)
                self._add(search.scopes, row, {row.id: holder})
            else:
                del self.rows[0]
        finally:
            search.close()


def _ids_beside(holder: HolderPath, others: Collection[int]) -> set[int]:
    """Return the ids of those that are in the same table as a named one, if they are many.

    A few may be filled by different lines, as attributes are.
    """
    table = holder.above[0] if holder.above else None
    if type(table) not in CONTAINERS or (type(table) is dict and "__builtins__" in table):
        return set()
    if any(namespace(owner) is table for owner in holder.above[1:2]):
        return set()
    ids = safe_reads.common_ids(table, dict.fromkeys(others).keys())
    return ids if len(ids) >= _MAX_CONTAINERS else set()


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
    if line is not None and line.strength >= PASSES:
        return line
    # what sets a name makes the owner of a container, which was there before: its items tell more
    is_maker = line is not None and line.function.endswith("__init__")
    line = site_line(site) or (None if is_maker else line)
    if line is not None:
        return line
    if name.is_in_script:
        return creating_line(holder, scopes.files)
    calls = library_calls(name, holder, scopes.files)
    # what makes an item comes before what fills it
    fitting = (call for call in calls if (call.file, call.line) in traced)
    return min(fitting, key=lambda call: call.line, default=None)
