"""Search upwards from tensors: which container holds them all, and how to name it.

1. Go up level by level through the referrers of a sample of tensors. Record which of the sample
   each referrer leads to. The lowest object that leads to most of them is what grows: a list, a
   dict, a deque, an object.
2. From there, go up level by level to the nearest name: an attribute of an object whose class is
   the script's, a variable of a running function, a module's global, a class attribute, the cell of
   a closure. The search passes through objects of libraries.

Since Python 3.11, variables of running functions don't show up as referrers, so they're looked up
in `UserScopes`. One list holds all visited objects, and positions in it say what refers to what. So
the search has to ignore only one object of its own.

Such a pass can't be cut, so the search may pause before each (`suspension`). Then it keeps only
numbers in its frames, and objects in lists that the suspension knows.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import CodeType, FrameType, GeneratorType, ModuleType
from typing import Any

from memagent.components import live_objects
from memagent.leaks.detectors.base import Result, TimeBudget, Work, finish
from memagent.leaks.object_names import ObjectName, name_from, variable_names
from memagent.leaks.suspension import GONE, Suspension
from memagent.leaks.user_code import UserScopes, is_own, is_own_frame, running_frames

_MAX_LEVELS = 24
_MAX_NAME_LEVELS = 32
_MAX_SAMPLE_S = 2.0
"""Processor time for one sample, so that the next group of tensors gets its turn."""
_MIN_PASSES = 2
"""Passes over all objects that a slice makes, however long they take."""
_MAX_REFERRERS = 5_000
_MAX_QUERY = 64
"""`gc.get_referrers` compares every reference of the process with each object it's given."""


@dataclass(frozen=True)
class HolderPath:
    """A container, the objects between the tensors and it, and those between it and its name."""

    container: Any
    coverage: float
    """Share of the sample that the container leads to."""
    name: ObjectName | None
    below: tuple[Any, ...]
    above: tuple[Any, ...]

    @property
    def objects(self) -> tuple[Any, ...]:
        return (*self.below, self.container, *self.above)


class ReferrerSearch:
    """The searches of one diagnosis, within its time budget.

    `ignored` holds the ids of the diagnosis' own lists, which refer to tensors.
    """

    def __init__(self, scopes: UserScopes, ignored: set[int], budget: TimeBudget) -> None:
        self.scopes = scopes
        self.visited: list[Any] = []
        """All objects of the last search."""
        self.suspension = Suspension()
        """Further lists of the diagnosis, which it empties during pauses."""
        self._budget = budget
        self._may_pause = True
        self._passes = 0
        self._running = _running_ids()
        self._ignored = ignored | {id(self.visited)}
        self._positions: dict[int, int] = {}
        """Position in `visited` by id."""
        self._covers: list[int] = []
        """Bits of the sample's objects that each position leads to."""
        self._inner: list[int] = []
        """Position that each one was reached from, -1 for the sample."""

    def ignore(self, own_list: Sequence[Any]) -> None:
        """Add a list that refers to tensors until the next pause."""
        self._ignored.add(id(own_list))

    def hold(self, own_list: list[Any]) -> list[Any]:
        """Add another list of the diagnosis that refers to tensors. Return it."""
        self._ignored.add(id(own_list))
        return self.suspension.add(own_list)

    def common_holder(self, sample: list[Any]) -> Work[HolderPath | None]:
        """Return the nearest object that leads to most of the sample, or None.

        Only objects that Python refers to count: autograd holds the others.
        """
        self._begin(self.hold(sample))
        ends_s = self._budget.used_s() + _MAX_SAMPLE_S
        yield from self._pause_in_search()
        frontier = self._next_level(range(len(self.visited)))
        covered = reduce(or_, (self._covers[position] for position in frontier), 0).bit_count()
        enough = max(2, -(-covered * 6 // 10))  # 60 %, rounded up
        for level in range(_MAX_LEVELS):
            if level:
                yield from self._pause_in_search()
                frontier = self._next_level(frontier)
            common = [item for item in frontier if self._covers[item].bit_count() >= enough]
            if common:
                best = min(
                    common, key=lambda item: (frontier[item], _preference(self.visited[item]))
                )
                coverage = self._covers[best].bit_count() / covered
                # a pause finds a tuple by what refers to it
                self.hold([self.visited[item] for item in frontier if self._inner[item] == best])
                target_and_below = self._path(best)[::-1]
                return (yield from self._named(target_and_below, coverage))
            if not frontier or self._budget.is_over() or self._budget.used_s() > ends_s:
                break
        return None

    def name(self, target: Any) -> HolderPath:
        """Return the best name of a single object, without a pause."""
        return self.at_once(self._named([target], 1.0))

    def at_once(self, work: Work[Result]) -> Result:
        """Do some work of this search without a pause."""
        self._may_pause = False
        try:
            return finish(work)
        finally:
            self._may_pause = True

    def referrers_until(self, target: Any, is_found: Callable[[Any], bool]) -> Work[list[Any]]:
        """Return what leads to an object, up to the first level with an object that `is_found`."""
        self._begin([target])
        return self._climb_until(is_found)

    def _climb_until(self, is_found: Callable[[Any], bool]) -> Work[list[Any]]:
        ends_s = self._budget.used_s() + _MAX_SAMPLE_S
        frontier: Iterable[int] = [0]
        for _ in range(_MAX_LEVELS):
            yield from self._pause_in_search()
            frontier = self._next_level(frontier)
            if not frontier or any(is_found(self.visited[item]) for item in frontier):
                break
            if self._budget.is_over() or self._budget.used_s() > ends_s:
                break
        return self.visited

    def clear(self) -> None:
        """Release the objects of the last search."""
        self._begin([])

    def close(self) -> None:
        """Release all objects, and forget the lists."""
        self.clear()
        self.suspension.remove_after(0)

    def _named(self, target_and_below: list[Any], coverage: float) -> Work[HolderPath]:
        """Return the best name on the lowest level that has one in the script."""
        self._begin(self.hold(target_and_below)[:1])
        if (own := name_from(self.scopes, self.visited[0], [])) is not None:
            return HolderPath(self.visited[0], coverage, own, tuple(target_and_below[1:]), ())
        frontier = [0]
        best: ObjectName | None = None
        best_position = 0
        for _ in range(_MAX_NAME_LEVELS):
            yield from self._pause_in_search()
            first_new = len(self.visited)
            upper = self._next_level(frontier)
            # Classes on this level: a link of a chain names the next one only as `Link.next`.
            chain = {type(self.visited[position]) for position in frontier if position}
            chain.add(type(target_and_below[0]))
            for name, position in self._candidates(frontier, upper, first_new):
                if name.owner not in chain and (best is None or name.rank < best.rank):
                    best, best_position = name, position
            if (best and best.is_in_script) or not upper or self._budget.is_over():
                break
            modules = self.scopes.modules
            frontier = [item for item in upper if id(self.visited[item]) not in modules]
        above = tuple(self._path(best_position)[1:]) if best else ()
        target, *below = target_and_below
        return HolderPath(target, coverage, best, tuple(below), above)

    def _candidates(
        self, frontier: list[int], upper: Iterable[int], first_new: int
    ) -> list[tuple[ObjectName, int]]:
        """Return names with positions: by variables on this level, by holders on the next."""
        names = [
            (name, position)
            for position in frontier
            for name in variable_names(self.scopes, self._path(position))
        ]
        for position in upper:
            if position >= first_new:
                path = self._path(self._inner[position])
                if name := name_from(self.scopes, self.visited[position], path):
                    names.append((name, position))
        return names

    # -- levels ---------------------------------------------------------------------------------

    def _begin(self, sample: Sequence[Any]) -> None:
        self.visited.clear()
        self._positions.clear()
        self._covers.clear()
        self._inner.clear()
        for bit, item in enumerate(sample):
            self._visit(item, 1 << bit, -1)

    def _next_level(self, frontier: Iterable[int]) -> dict[int, int]:
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
                for way in _ways_down(gc.get_referents(referrer), here, depth):
                    inner = here[id(way[0])]
                    bits = self._covers[inner]
                    for tuples, item in enumerate((*way[1:], referrer)):
                        if self._visit(item, bits, inner):
                            changed.setdefault(self._positions[id(item)], tuples)
                        inner = self._positions[id(item)]
        return changed

    def _is_asked_for(self, position: int) -> bool:
        """Return False for what was freed, and for a tuple, which what refers to it came with."""
        item = self.visited[position]
        return item is not GONE and (type(item) is not tuple or self._inner[position] < 0)

    def _visit(self, item: Any, bits: int, inner: int) -> bool:
        """Note what an object leads to. Return True if that wasn't known."""
        position = self._positions.get(id(item))
        if position is None:
            self._positions[id(item)] = len(self.visited)
            self.visited.append(item)
            self._covers.append(bits)
            self._inner.append(inner)
            return True
        if self._covers[position] | bits != self._covers[position]:
            self._covers[position] |= bits
            return True
        return False

    def pause_if_due(self) -> Work[None]:
        """Let training go on between two searches, if the slice is over."""
        if self._budget.is_slice_over():
            self.clear()
            yield from self._pause()

    def _pause_in_search(self) -> Work[None]:
        """Let training go on if the slice is over and has made some passes.

        To find the visited objects again takes longer than a pass.
        """
        if self._may_pause and self._passes >= _MIN_PASSES and self._budget.is_slice_over():
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
        for position, inner in enumerate(self._inner):
            if inner >= 0 and not _refers_to(self.visited[position], self.visited[inner]):
                self.visited[position] = GONE
        self._positions = {
            id(item): position for position, item in enumerate(self.visited) if item is not GONE
        }

    def _path(self, position: int) -> list[Any]:
        """Return the objects from the start of the search up to `position`."""
        path = []
        while position >= 0:
            path.append(self.visited[position])
            position = self._inner[position]
        return path[::-1]

    def _is_barrier(self, item: Any) -> bool:
        """Return True for what the search doesn't pass: itself, modules, running frames."""
        if id(item) in self._ignored or issubclass(type(item), ModuleType | CodeType):
            return True
        if issubclass(type(item), FrameType):
            return id(item) in self._running or is_own_frame(item)
        if issubclass(type(item), GeneratorType):  # the search itself
            return is_own(item.gi_code.co_filename)
        return type(item).__module__.startswith("memagent.leaks")


def _running_ids() -> set[int]:
    """Return the ids of running frames, which lead everywhere: the scopes know their variables."""
    return {id(frame) for frame in running_frames()}


def _refers_to(outer: Any, inner: Any) -> bool:
    # an id may have been reused during the pause
    if inner is GONE or outer is GONE:
        return False
    parts = gc.get_referents(outer)
    # the attributes of an object move into a dict once someone asks for its `__dict__`
    spaces = [] if isinstance(outer, dict) else [part for part in parts if type(part) is dict]
    return any(part is inner for part in (*parts, *gc.get_referents(*spaces)))


def _ways_down(parts: Iterable[Any], here: Mapping[int, int], depth: int) -> Iterator[list[Any]]:
    """Return the objects `here` that parts of a referrer are, or nested tuples among them contain.

    With each come the tuples, from it up. They are finished, since the referrer has them.
    """
    # get_referrers doesn't say which object each referrer leads to
    for part in parts:
        if depth == 0:
            if id(part) in here:
                yield [part]
        elif type(part) is tuple:
            for way in _ways_down(part, here, depth - 1):
                yield [*way, part]


def _preference(item: Any) -> int:
    """Return a lower number for a better container: a tuple of arguments comes last."""
    if issubclass(type(item), list | dict | set | deque):
        return 0
    return 2 if issubclass(type(item), tuple | FrameType) else 1
