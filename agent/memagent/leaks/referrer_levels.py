"""Levels of a search upwards through referrers: what leads to some objects, and what to that.

Since Python 3.11, variables of running functions don't show up as referrers, so they're looked up
in `UserScopes`. One list holds all visited objects, and positions in it say what refers to what. So
the search has to ignore only one object of its own.

Such a pass can't be cut, so the search may pause before each (`suspension`). Then it keeps only
numbers in its frames, and objects in lists that the suspension knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, FrameType, GeneratorType, ModuleType
from typing import Any

from memagent.components import live_objects, safe_reads
from memagent.leaks.detectors.base import Result, Work, finish
from memagent.leaks.suspension import GONE, Suspension
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.user_code import UserScopes, is_own, is_own_frame, running_code

_MIN_PASSES = 2
"""Passes over all objects that a slice makes, however long they take."""
_MAX_REFERRERS = 5_000
_MAX_QUERY = 64
"""`gc.get_referrers` compares every reference of the process with each object it's given."""


class ReferrerLevels:
    """`ignored` holds the ids of the diagnosis' own lists, which refer to tensors."""

    def __init__(self, scopes: UserScopes, ignored: set[int], budget: TimeBudget) -> None:
        self.scopes = scopes
        self.visited: list[Any] = []
        """All objects of the last search."""
        self.suspension = Suspension()
        """Further lists of the diagnosis, which it empties during pauses."""
        self.budget = budget
        self._may_pause = True
        self._passes = 0
        self._running = _running_ids()
        self._ignored = ignored | {id(self.visited)}
        self._positions: dict[int, int] = {}
        """Position in `visited` by id."""
        self.covers: list[int] = []
        """Bits of the sample's objects that each position leads to."""
        self.inner: list[int] = []
        """Position that each one was reached from, -1 for the sample."""

    def ignore(self, own_list: Sequence[Any]) -> None:
        """Add a list that refers to tensors until the next pause."""
        self._ignored.add(id(own_list))

    def hold(self, own_list: list[Any]) -> list[Any]:
        """Add another list of the diagnosis that refers to tensors. Return it."""
        self._ignored.add(id(own_list))
        return self.suspension.add(own_list)

    def at_once(self, work: Work[Result]) -> Result:
        """Do some work of this search without a pause."""
        self._may_pause = False
        try:
            return finish(work)
        finally:
            self._may_pause = True

    def clear(self) -> None:
        """Release the objects of the last search."""
        self.begin([])

    def close(self) -> None:
        """Release all objects, and forget the lists."""
        self.clear()
        self.suspension.remove_after(0)

    def begin(self, sample: Sequence[Any]) -> None:
        self.visited.clear()
        self._positions.clear()
        self.covers.clear()
        self.inner.clear()
        for bit, item in enumerate(sample):
            self._visit(item, 1 << bit, -1)

    def next_level(self, frontier: Iterable[int]) -> dict[int, int]:
        """Go one level up. Return positions that are new, or lead to more than known before.

        A tuple and what refers to it are on the same level; with each position comes the number of
        tuples on the way.
        """
        frontier = [item for item in frontier if self._is_asked_for(item)]
        # spread over the level, in place of its first objects only
        frontier = frontier[:: 1 + len(frontier) // _MAX_QUERY]
        self._passes += 1
        here = {id(self.visited[position]): position for position in frontier}
        changed: dict[int, int] = {}
        levels = live_objects.referrers(map(self.visited.__getitem__, frontier)) if here else []
        for depth, referrers in enumerate(levels):
            for referrer in referrers[:_MAX_REFERRERS]:
                if self._is_barrier(referrer):
                    continue
                for way in self._ways_down(referrer, here, depth):
                    inner = here[id(way[0])]
                    bits = self.covers[inner]
                    for tuples, item in enumerate((*way[1:], referrer)):
                        if self._visit(item, bits, inner):
                            changed.setdefault(self._positions[id(item)], tuples)
                        inner = self._positions[id(item)]
        return changed

    def _ways_down(self, referrer: Any, here: dict[int, int], depth: int) -> Iterator[list[Any]]:
        """Return the objects `here` that a referrer leads to, through `depth` nested tuples."""
        if depth:
            return _ways_in(safe_reads.parts_of(referrer).others, here, depth)
        # get_referrers doesn't say which object each referrer leads to
        positions = sorted(map(here.__getitem__, safe_reads.common_ids(referrer, here.keys())))
        return ([self.visited[position]] for position in positions)

    def _is_asked_for(self, position: int) -> bool:
        """Return False for what was freed, and for a tuple, which what refers to it came with."""
        item = self.visited[position]
        return item is not GONE and (type(item) is not tuple or self.inner[position] < 0)

    def _visit(self, item: Any, bits: int, inner: int) -> bool:
        """Note what an object leads to. Return True if that wasn't known."""
        position = self._positions.get(id(item))
        if position is None:
            self._positions[id(item)] = len(self.visited)
            self.visited.append(item)
            self.covers.append(bits)
            self.inner.append(inner)
            return True
        if self.covers[position] | bits != self.covers[position]:
            self.covers[position] |= bits
            return True
        return False

    def pause_if_due(self) -> Work[None]:
        """Let training go on between two searches, if the slice is over."""
        if self.budget.is_slice_over():
            self.clear()
            yield from self._pause()

    def pause_in_search(self) -> Work[None]:
        """Let training go on if the slice is over and has made some passes.

        To find the visited objects again takes longer than a pass.
        """
        if self._may_pause and self._passes >= _MIN_PASSES and self.budget.is_slice_over():
            yield from self._pause()

    def _pause(self) -> Work[None]:
        """Let training go on. Objects freed meanwhile become `GONE`."""
        self._passes = 0
        count = len(self.suspension)
        self.suspension.add(self.visited)
        yield from self.suspension.pause()
        self.suspension.remove_after(count)
        self.scopes = UserScopes()
        self._running = _running_ids()
        for position, inner in enumerate(self.inner):
            if inner >= 0 and not _refers_to(self.visited[position], self.visited[inner]):
                self.visited[position] = GONE
        self._positions = {
            id(item): position for position, item in enumerate(self.visited) if item is not GONE
        }

    def path(self, position: int) -> list[Any]:
        """Return the objects from the start of the search up to `position`."""
        path = []
        while position >= 0:
            path.append(self.visited[position])
            position = self.inner[position]
        return path[::-1]

    def _is_barrier(self, item: Any) -> bool:
        """Return True for what the search doesn't pass: itself, modules, running frames."""
        if id(item) in self._ignored or issubclass(type(item), ModuleType | CodeType):
            return True
        if issubclass(type(item), FrameType):
            return id(item) in self._running or is_own_frame(item)
        if issubclass(type(item), GeneratorType):  # the search itself
            return is_own(item.gi_code.co_filename)
        # what the agent keeps is no holder: its hooks would name it by the model
        return type(item).__module__.startswith("memagent.")


def _running_ids() -> set[int]:
    """Return the ids of running frames, which lead everywhere: the scopes know their variables."""
    return {reading.id for reading in running_code()}


def _refers_to(outer: Any, inner: Any) -> bool:
    # an id may have been reused during the pause
    if inner is GONE or outer is GONE:
        return False
    if safe_reads.common_ids(outer, {id(inner): None}.keys()):
        return True
    parts = safe_reads.parts_of(outer).others
    # the attributes of an object move into a dict once someone asks for its `__dict__`
    spaces = [] if isinstance(outer, dict) else [part for part in parts if type(part) is dict]
    return any(part is inner for part in safe_reads.parts_of(*spaces).others)


def _ways_in(parts: Iterable[Any], here: Mapping[int, int], depth: int) -> Iterator[list[Any]]:
    """Return the objects `here` that parts of a referrer are, or nested tuples among them contain.

    With each come the tuples, from it up. They are finished, since the referrer has them.
    """
    for part in parts:
        if depth == 0:
            if id(part) in here:
                yield [part]
        elif type(part) is tuple:
            for way in _ways_in(part, here, depth - 1):
                yield [*way, part]
