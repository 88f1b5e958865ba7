"""From tensors up to a name: which container holds them all, and what a person calls it.

1. Level by level, the referrers of a sample of the tensors, with a record of which of the sample each one leads to. The lowest object that
   leads to most of them is what grows: a list, a dict, a deque, an object.
2. From there level by level again, up to the nearest name: an attribute of an object whose class is the script's, a variable of a
   running function, a module's global, a class attribute, the cell of a closure. Objects of libraries are climbed through.

Running functions' variables are no referrers since Python 3.11: they are looked up (scopes). One list keeps all that was met, and positions
in it say what holds what: so a single object of ours has to be overlooked.

Reference cycles: what closes one. Downwards from the script's objects, which costs little; referrers cost a pass over everything.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from memagent.leaks import source_lines
from memagent.leaks.detectors.base import TimeBudget
from memagent.leaks.object_names import Name, file_of, is_better, name_at, variable_names
from memagent.leaks.user_code import (
    Scopes,
    frames,
    is_script,
    is_script_class,
    namespace,
    own_frame,
)

_LEVELS, _NAME_LEVELS = 24, 14
_LONGEST_S = 0.35
"""For one sample: the next kind of tensor wants its turn."""
_MOST_REFERRERS = 5_000
_MOST_AT_ONCE = 64
"""`gc.get_referrers` compares every reference of the process with every object that it is given."""


@dataclass(frozen=True)
class Place:
    """What holds them all, and how it is reached. `below` lies between the tensors and it, `above` between it and its name."""

    container: Any
    coverage: float
    name: Name | None
    below: tuple[Any, ...]
    above: tuple[Any, ...]

    @property
    def passed(self) -> tuple[Any, ...]:
        return (*self.below, self.container, *self.above)


class ReferrerSearch:
    """One diagnosis' ways up, until the `deadline`. `overlook` the ids of our own lists that hold tensors."""

    def __init__(self, scopes: Scopes, overlook: set[int], deadline: TimeBudget) -> None:
        self.scopes, self._deadline = scopes, deadline
        self._running = {id(frame) for frame in frames()}
        self.met: list[Any] = []
        """Everything that the last way up came by."""
        self._overlook = overlook | {id(self.met)}
        self._positions: dict[int, int] = {}
        self._covers: list[int] = []
        self._inner: list[int] = []

    def overlook(self, ours: Sequence[Any]) -> None:
        """One more list of ours that holds tensors."""
        self._overlook.add(id(ours))

    def common(self, sample: Sequence[Any]) -> Place | None:
        """The nearest object that leads to at least six in ten of the sample; None where there is none. Of the sample counts what Python
        holds at all: the rest is autograd's."""
        self._begin(sample)
        ends_s = time.thread_time() + _LONGEST_S
        frontier = self._rise(list(range(len(self.met))))
        held = reduce(or_, (self._covers[position] for position in frontier), 0).bit_count()
        enough = max(2, -(-held * 6 // 10))
        for level in range(_LEVELS):
            if level:
                frontier = self._rise(frontier)
            reached = [
                position for position in frontier if self._covers[position].bit_count() >= enough
            ]
            if reached:
                best = min(reached, key=lambda position: _awkwardness(self.met[position]))
                coverage = self._covers[best].bit_count() / held
                container, below = self.met[best], self._way(self._inner[best])[::-1]
                return self._named(container, coverage, tuple(below))
            if not frontier or self._deadline.is_over() or time.thread_time() > ends_s:
                break
        return None

    def name(self, target: Any) -> Place:
        """The same for a single object."""
        return self._named(target, 1.0, ())

    def climb(self, target: Any, seconds: float, until: Callable[[Any], bool]) -> list[Any]:
        """What is above a single object, up to the level where one does; within a time of its own that the wall has."""
        ends_s = time.thread_time() + seconds
        self._begin([target])
        frontier = [0]
        for _ in range(_LEVELS):
            frontier = self._rise(frontier)
            if not frontier or any(until(self.met[item]) for item in frontier):
                break
            if not self._deadline.leaves(0.0) or time.thread_time() > ends_s:
                break
        return self.met

    def close(self) -> None:
        """Let go of everything that was met."""
        self.met.clear()

    def _named(self, target: Any, coverage: float, below: tuple[Any, ...]) -> Place:
        """The best name on the lowest level that has a good one."""
        self._overlook.add(id(below))
        self._begin([target])
        if (own := name_at(self.scopes, target, [])) is not None:
            return Place(target, coverage, own, below, ())
        frontier, best, best_at = [0], None, 0
        for _ in range(_NAME_LEVELS):
            seen = len(self.met)
            rising = self._rise(frontier)
            candidates = [
                (name, position)
                for position in frontier
                for name in variable_names(self.scopes, self._way(position))
            ]
            candidates += [
                (name, position)
                for position in rising
                if position >= seen
                and (
                    name := name_at(
                        self.scopes, self.met[position], self._way(self._inner[position])
                    )
                )
            ]
            inside = {type(self.met[position]) for position in frontier if position}
            for name, position in candidates:
                if name.owner is not None and (name.owner in inside or name.owner is type(target)):
                    continue  # the link of a chain: its own class has no better name for it
                if best is None or is_better(name, best):
                    best, best_at = name, position
            if (best and best.is_good) or not rising or self._deadline.is_over():
                break
            frontier = [
                position for position in rising if id(self.met[position]) not in self.scopes.modules
            ]
        above = tuple(self._way(best_at)[1:]) if best else ()
        return Place(target, coverage, best, below, above)

    # -- levels -----------------------------------------------------------------------------------------------------------

    def _begin(self, sample: Sequence[Any]) -> None:
        self.met.clear()
        self._positions.clear()
        self._covers.clear()
        self._inner.clear()
        self._overlook.add(id(sample))
        for bit, item in enumerate(sample):
            self._note(item, 1 << bit, -1)

    def _rise(self, frontier: list[int]) -> list[int]:
        """One level up: positions of what was met for the first time, or leads to more than was known."""
        frontier = frontier[:: 1 + len(frontier) // _MOST_AT_ONCE]
        here = {id(self.met[position]): position for position in frontier}
        changed: dict[int, None] = {}
        referrers = gc.get_referrers(*map(self.met.__getitem__, frontier)) if frontier else []
        for referrer in referrers[:_MOST_REFERRERS]:
            if self._is_barrier(referrer):
                continue
            for child in self._held(referrer, here):
                if self._note(referrer, self._covers[child], child):
                    changed[self._positions[id(referrer)]] = None
        return list(changed)

    def _held(self, referrer: Any, here: dict[int, int]) -> Iterator[int]:
        for part in gc.get_referents(referrer):
            child = here.get(id(part))
            if child is not None:
                yield child

    def _note(self, item: Any, bits: int, inner: int) -> bool:
        position = self._positions.get(id(item))
        if position is None:
            self._positions[id(item)] = len(self.met)
            self.met.append(item)
            self._covers.append(bits)
            self._inner.append(inner)
            return True
        if self._covers[position] | bits != self._covers[position]:
            self._covers[position] |= bits
            return True
        return False

    def _way(self, position: int) -> list[Any]:
        """From where the way began up to `position`."""
        way = []
        while position >= 0:
            way.append(self.met[position])
            position = self._inner[position]
        return way[::-1]

    def _is_barrier(self, item: Any) -> bool:
        """What is not climbed through: ourselves, modules, running frames."""
        if id(item) in self._overlook or isinstance(item, ModuleType | CodeType):
            return True
        if isinstance(item, FrameType):
            return id(item) in self._running or own_frame(item)
        return type(item).__module__.startswith("memagent.leaks")


def _awkwardness(item: Any) -> int:
    """Of several that hold them all at one level, a container goes before an object, and that before a tuple of arguments."""
    return (
        0
        if isinstance(item, list | dict | set | deque)
        else 2
        if isinstance(item, tuple | FrameType)
        else 1
    )


_MOST_BELOW = 3_000


def is_telling(item: Any) -> bool:
    """What a cycle is told by: an object of the script, else a function or a frame of it."""
    if isinstance(item, FrameType | FunctionType):
        code = item.f_code if isinstance(item, FrameType) else item.__code__
        return is_script(code.co_filename)
    return is_script_class(type(item))


def closing(met: Sequence[Any]) -> tuple[Name, source_lines.Line | None] | None:
    """What closes a cycle: the attribute of the script's object that leads back to it, else the function whose frame or closure lies on
    the way."""
    for item in filter(is_telling, met):
        if isinstance(item, FrameType | FunctionType):
            code = item.f_code if isinstance(item, FrameType) else item.__code__
            return Name(
                f"variables of {code.co_name}", (), code.co_filename, code.co_name, code=code
            ), None
        for attribute, value in list((namespace(item) or {}).items()):
            if value is item or _leads_to(value, item):
                return _attribute_line(type(item), attribute)
    return None


def _leads_to(start: Any, target: Any) -> bool:
    todo, seen = [start], {id(start)}
    while todo and len(seen) < _MOST_BELOW:
        for part in gc.get_referents(todo.pop()):
            if part is target:
                return True
            if id(part) not in seen and not _is_end(part):
                seen.add(id(part))
                todo.append(part)
    return False


def _is_end(item: Any) -> bool:
    """Modules, their namespaces, classes, tensors: what lies below leads nowhere."""
    if isinstance(item, dict):
        return "__builtins__" in item
    return isinstance(item, ModuleType | type | str | int | float) or _is_tensor(item)


def _attribute_line(kind: type, attribute: str) -> tuple[Name, source_lines.Line | None]:
    file = file_of(kind)
    found = (
        source_lines.hook_calls(file)
        if "hooks" in attribute
        else source_lines.attribute_sets(file, kind.__name__, attribute)
    )
    inside = [line for line in found if kind.__name__ in line.function.split(".")]
    return Name(f"{kind.__name__}.{attribute}", (), file, kind.__name__, owner=kind), next(
        iter([*inside, *found]), None
    )


def _is_tensor(item: Any) -> bool:
    return any(
        kind.__name__ == "Tensor" and kind.__module__.startswith("torch")
        for kind in type(item).__mro__
    )
