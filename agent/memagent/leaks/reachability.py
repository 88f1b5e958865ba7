"""Search downwards from the script's variables, for tensors that the search upwards can't place.

Some holders don't show up as referrers: numpy arrays, dicts without tracked values, and contexts.
A long chain takes the search upwards one pass over all objects per link; downwards, one pass is
enough.

1. Start at the globals of the script's modules, the variables of its running functions, the context
   variables, and the finalizers of weak references. Visit what they refer to, nearest first, and
   note what each object was reached from.
2. The container is the lowest object that leads to most of the tensors.
3. Its name is the first on the way back up, as seen from the objects on that way.
"""

from __future__ import annotations

import contextvars
import gc
import sys
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType, ModuleType
from typing import Any

from memagent.leaks.detectors.base import TimeBudget
from memagent.leaks.object_names import ObjectName, name_from, variable_names
from memagent.leaks.referrers import HolderPath
from memagent.leaks.user_code import (
    UserScopes,
    is_own_frame,
    is_script,
    is_script_class,
    local_values,
    running_frames,
)

_MAX_OBJECTS = 100_000
_OBJECTS_PER_CHECK = 1_000
_MIN_COVERAGE = 0.6


def holder_from_variables(
    scopes: UserScopes, tensors: Sequence[Any], budget: TimeBudget
) -> HolderPath | None:
    """Return the lowest named object that leads to most of `tensors`, or None."""
    parents = _reached(tensors, budget)
    wanted = {id(tensor) for tensor in tensors} & parents.keys()
    leads_to: Counter[int] = Counter()
    for key in wanted:
        leads_to.update(id(item) for item in _way_up(parents, key)[1:])
    enough = max(2, _MIN_COVERAGE * len(wanted))
    for key in wanted:  # any of those that the container leads to will do
        way = _way_up(parents, key)
        place = next((index for index, item in enumerate(way) if leads_to[id(item)] >= enough), 0)
        if place:
            coverage = leads_to[id(way[place])] / len(tensors)
            return _named(scopes, way, place, coverage)
    return None


def _named(scopes: UserScopes, way: list[Any], place: int, coverage: float) -> HolderPath | None:
    name: ObjectName | None = None
    top = place
    for top in range(place, len(way)):
        path = way[place : top + 1]
        names = variable_names(scopes, path)
        if top + 1 < len(way) and (outer := name_from(scopes, way[top + 1], path)) is not None:
            names.append(outer)
        names = [item for item in names if item.is_in_script and item.owner is not type(way[place])]
        if names:
            name = min(names, key=lambda item: item.rank)
            break
    if name is None and way[top] is _finalizers():
        text = "weakref.finalize._registry"
        name = ObjectName(text, (), str(weakref.__file__), "<module>", owner=weakref.finalize)
    if name is None:
        return None
    return HolderPath(
        way[place], coverage, name, tuple(way[:place][::-1]), tuple(way[place + 1 : top + 1])
    )


# -- visiting -----------------------------------------------------------------------------------


def _reached(tensors: Sequence[Any], budget: TimeBudget) -> dict[int, tuple[Any, int]]:
    """Return the objects below the script's variables by id, each with its parent's id."""
    wanted = set(map(id, tensors))
    parents: dict[int, tuple[Any, int]] = {}
    todo: deque[Any] = deque()
    for root in _roots():
        if id(root) not in parents:
            parents[id(root)] = root, 0
            todo.append(root)
    while todo and len(parents) < _MAX_OBJECTS:
        if len(parents) % _OBJECTS_PER_CHECK == 0 and budget.is_over():
            break
        item = todo.popleft()
        for part in _parts(item):
            if id(part) in parents or (id(part) not in wanted and _is_barrier(part)):
                continue
            parents[id(part)] = part, id(item)
            if id(part) not in wanted:
                todo.append(part)
    return parents


def _roots() -> Iterator[Any]:
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and is_script(getattr(module, "__file__", None) or ""):
            yield module.__dict__
    for frame in running_frames():
        if is_script(frame.f_code.co_filename):
            if frame.f_locals is frame.f_globals:
                yield frame.f_globals
            else:
                yield from local_values(frame).values()
    yield from contextvars.copy_context().values()
    yield _finalizers()


def _finalizers() -> Any:
    """Return the registry of `weakref.finalize`, which keeps the arguments of the callbacks."""
    return getattr(weakref.finalize, "_registry", None)


def _parts(item: Any) -> list[Any]:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(item, numpy.ndarray):
        # the collector doesn't see what an array shows a part of
        return [item.base] if item.base is not None else []
    return gc.get_referents(item)


def _is_barrier(item: Any) -> bool:
    """Return True for plain values, modules and their globals, and what belongs to libraries."""
    if isinstance(item, str | bytes | int | float | complex | ModuleType | CodeType):
        return True
    if isinstance(item, type):
        return not is_script_class(item)
    if isinstance(item, dict):
        return "__builtins__" in item
    if isinstance(item, FrameType):
        return is_own_frame(item)
    return item is None or type(item).__module__.startswith("memagent.leaks")


def _way_up(parents: dict[int, tuple[Any, int]], key: int) -> list[Any]:
    """Return the objects from the one with this id up to the variable that leads to it."""
    way = []
    while key:
        item, key = parents[key]
        way.append(item)
    return way
