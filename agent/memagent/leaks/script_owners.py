"""Owners of the script that its variables don't lead to: found by another thread's pass.

A suspended generator, an object that only a library's registry knows, and a closure that a library
calls back keep containers, too. A search upwards takes a few passes for each container. One pass
lists all owners at which such a search ends, and a walk down from them is short.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import GeneratorType
from typing import Any

from memagent.components import live_objects
from memagent.components.live_objects import OwnerReading
from memagent.leaks.background_pass import BackgroundPass
from memagent.leaks.user_code import is_script, is_script_class, script_code, script_modules
from memagent.leaks.variable_walk import MAX_OBJECTS

_OTHERS = (GeneratorType, functools.partial, functools._lru_cache_wrapper)
_VALUES = (int, float, complex, str, bytes)
_MAX_OWNERS = MAX_OBJECTS // 4
"""A quarter of the objects that a walk visits."""
_weakref_offset_of: Any = type.__dict__["__weakrefoffset__"].__get__


class ScriptOwners:
    """Weak references to the script's objects, functions and suspended generators.

    1. Another thread lists them during a step. It leaves out tensors and arrays, which a reference
       would keep from being swapped or resized.
    2. `living` returns those that are still there, at the boundary after that.
    """

    def __init__(self) -> None:
        self.is_complete = False
        """True unless there are too many, or some allow no weak reference."""
        self._reading = OwnerReading([], [])
        self._pass = BackgroundPass(self._read)
        self._pass.start()

    @property
    def thread_s(self) -> float:
        """Return the processor time of the other thread."""
        return self._pass.thread_s

    def living(self) -> list[Any]:
        """Wait for the other thread, and return the owners that are alive."""
        self._pass.wait()
        owners = (find() for row in self._reading for find in row)
        return [item for item in owners if item is not None and _is_of_script(item)]

    def close(self) -> None:
        """Wait for the other thread, and drop the references."""
        self._pass.wait()
        self._reading = OwnerReading([], [])

    def _read(self) -> None:
        kinds = [*_script_classes(), *_OTHERS]
        allowed = [kind for kind in kinds if _weakref_offset_of(kind)]
        reading = live_objects.references_to_owners(allowed, _script_spaces(), _MAX_OWNERS)
        self._reading = reading
        self.is_complete = len(allowed) == len(kinds) and max(map(len, reading)) < _MAX_OWNERS


def _script_classes() -> Iterator[type]:
    """Yield the script's classes, except for those of tensors and arrays."""
    modules = sys.modules.get("torch"), sys.modules.get("numpy")
    data = tuple(
        kind
        for module, name in zip(modules, ("Tensor", "ndarray"), strict=True)
        if (kind := getattr(module, name, None)) is not None
    )
    # not `issubclass`: a metaclass may define that in Python
    without = set(map(id, live_objects.with_subclasses(data)))
    for kind in live_objects.with_subclasses((object,)):
        is_value = issubclass(kind, _VALUES) or id(kind) in without
        if not is_value and is_script_class(kind):
            yield kind


def _script_spaces() -> set[int]:
    """Return the ids of the namespaces of the script's modules."""
    spaces = {id(space) for _, _, space in script_modules()}
    return spaces | {id(reading.globals) for reading in script_code()}


def _is_of_script(item: Any) -> bool:
    """Return False for a library's generator, partial or cache."""
    if type(item) is GeneratorType:
        return is_script(item.gi_code.co_filename)
    if type(item) not in _OTHERS:
        return True
    function = item.func if type(item) is functools.partial else item.__wrapped__
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and is_script(code.co_filename)
