"""Search upwards from tensors: which container holds them all, and how to name it.

1. Go up level by level through the referrers of a sample of tensors. Record which of the sample
   each referrer leads to. The lowest object that leads to most of them is what grows: a list, a
   dict, a deque, an object.
2. From there, go up level by level to the nearest name: an attribute of an object whose class is
   the script's, a variable of a running function, a module's global, a class attribute, the cell of
   a closure. The search passes through objects of libraries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import FrameType
from typing import Any

from memagent.leaks.detectors.base import Work
from memagent.leaks.object_names import ObjectName, name_from, variable_names
from memagent.leaks.referrer_levels import ReferrerLevels

_MAX_LEVELS = 24
_MAX_NAME_LEVELS = 32
_MAX_SAMPLE_S = 2.0
"""Processor time for one sample, so that the next group of tensors gets its turn."""


@dataclass(frozen=True)
class HolderPath:
    """A container, the objects between the tensors and it, and those between it and its name."""

    container: Any
    coverage: float
    """Share of the sample that the container leads to."""
    name: ObjectName | None
    below: tuple[Any, ...]
    above: tuple[Any, ...]
    is_link: bool = False
    """True for a link of a chain, which counts only if a line surely adds one."""

    @property
    def objects(self) -> tuple[Any, ...]:
        return (*self.below, self.container, *self.above)


class ReferrerSearch(ReferrerLevels):
    """The searches of one diagnosis, within its time budget."""

    def common_holder(self, sample: list[Any]) -> Work[HolderPath | None]:
        """Return the nearest object that leads to most of the sample, or None.

        Only objects that Python refers to count: autograd holds the others.
        """
        self.begin(self.hold(sample))
        ends_s = self.budget.used_s() + _MAX_SAMPLE_S
        yield from self.pause_in_search()
        frontier = self.next_level(range(len(self.visited)))
        covered = reduce(or_, (self.covers[position] for position in frontier), 0).bit_count()
        enough = max(2, -(-covered * 6 // 10))  # 60 %, rounded up
        for level in range(_MAX_LEVELS):
            if level:
                yield from self.pause_in_search()
                frontier = self.next_level(frontier)
            common = [item for item in frontier if self.covers[item].bit_count() >= enough]
            if common:
                best = min(
                    common, key=lambda item: (frontier[item], _preference(self.visited[item]))
                )
                coverage = self.covers[best].bit_count() / covered
                # a pause finds a tuple by what refers to it
                self.hold([self.visited[item] for item in frontier if self.inner[item] == best])
                target_and_below = self.path(best)[::-1]
                return (yield from self._named(target_and_below, coverage))
            if not frontier or self.budget.is_over() or self.budget.used_s() > ends_s:
                break
        return None

    def name(self, target: Any) -> HolderPath:
        """Return the best name of a single object, without a pause."""
        return self.at_once(self._named([target], 1.0))

    def name_in_slices(self, targets: list[Any]) -> Work[HolderPath]:
        """Return the best name of the single object in a list that the search holds."""
        return self._named(targets, 1.0)

    def referrers_until(self, target: Any, is_found: Callable[[Any], bool]) -> Work[list[Any]]:
        """Return what leads to an object, up to the first level with an object that `is_found`."""
        self.begin([target])
        return self._climb_until(is_found)

    def _climb_until(self, is_found: Callable[[Any], bool]) -> Work[list[Any]]:
        ends_s = self.budget.used_s() + _MAX_SAMPLE_S
        frontier: Iterable[int] = [0]
        for _ in range(_MAX_LEVELS):
            yield from self.pause_in_search()
            frontier = self.next_level(frontier)
            if not frontier or any(is_found(self.visited[item]) for item in frontier):
                break
            if self.budget.is_over() or self.budget.used_s() > ends_s:
                break
        return self.visited

    def _named(self, target_and_below: list[Any], coverage: float) -> Work[HolderPath]:
        """Return the best name on the lowest level that has one in the script."""
        self.begin(self.hold(target_and_below)[:1])
        if (own := name_from(self.scopes, self.visited[0], [])) is not None:
            return HolderPath(self.visited[0], coverage, own, tuple(target_and_below[1:]), ())
        frontier = [0]
        best: ObjectName | None = None
        best_position = 0
        for _ in range(_MAX_NAME_LEVELS):
            yield from self.pause_in_search()
            first_new = len(self.visited)
            upper = self.next_level(frontier)
            # Classes on this level: a link of a chain names the next one only as `Link.next`.
            chain = {type(self.visited[position]) for position in frontier if position}
            chain.add(type(target_and_below[0]))
            for name, position in self._candidates(frontier, upper, first_new):
                if name.owner not in chain and (best is None or name.rank < best.rank):
                    best, best_position = name, position
            if (best and best.is_in_script) or not upper or self.budget.is_over():
                break
            modules = self.scopes.modules
            frontier = [item for item in upper if id(self.visited[item]) not in modules]
        above = tuple(self.path(best_position)[1:]) if best else ()
        target, *below = target_and_below
        return HolderPath(target, coverage, best, tuple(below), above)

    def _candidates(
        self, frontier: list[int], upper: Iterable[int], first_new: int
    ) -> list[tuple[ObjectName, int]]:
        """Return names with positions: by variables on this level, by holders on the next."""
        names = [
            (name, position)
            for position in frontier
            for name in variable_names(self.scopes, self.path(position))
        ]
        for position in upper:
            if position >= first_new:
                path = self.path(self.inner[position])
                if name := name_from(self.scopes, self.visited[position], path):
                    names.append((name, position))
        return names


def _preference(item: Any) -> int:
    """Return a lower number for a better container: a tuple of arguments comes last."""
    if issubclass(type(item), list | dict | set | deque):
        return 0
    return 2 if issubclass(type(item), tuple | FrameType) else 1
