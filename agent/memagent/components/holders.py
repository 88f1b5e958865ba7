"""Where tensors hide beside a module's parameters and buffers: on parameters, in optimizers, in quantised modules.

Values are followed through dicts, lists and objects, never into modules (they are watched themselves, or not at all) and never into
objects of torch or the standard library, other optimizers excepted. In `.state` any other object is followed; on the optimizer itself
only dataclasses and objects of the optimizer's own package, so that a reference to a trainer does not make all of its tensors
optimizer state.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

_DEPTH = 8
_ATOMS = (int, float, str, bool, bytes, type(None), complex, type)
_LONG = 1000
"""A list longer than this that begins with a number or text holds nothing but such: it is not looked through."""
_MODULE_HOLDERS = {"bitsandbytes": ("state", "quant_state"), "hqq": ("meta",)}
"""Attributes in which modules of a package keep parts of their weights outside their parameters and buffers."""


def held_by_parameter(parameters: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Tensors in the attributes of parameters: those that belong to the weights, and those that are gradients."""
    weights, gradients = _Gatherer(), _Gatherer()
    for parameter in parameters:
        attributes = parameter.__dict__
        if attributes:
            for name, value in list(attributes.items()):
                (gradients if "grad" in name else weights).gather(value)
    return weights.found, gradients.found


def held_by_module(modules: Collection[Any]) -> list[Any]:
    """Tensors that quantised modules keep in objects of their own."""
    gatherer = _Gatherer()
    names = {kind: _MODULE_HOLDERS.get(_package(kind), ()) for kind in set(map(type, modules))}
    if any(names.values()):
        for module in modules:
            for name in names[type(module)]:
                gatherer.gather(getattr(module, name, None))
    return gatherer.found


def held_by_optimizer(optimizer: Any) -> list[Any]:
    """Every tensor that an optimizer reaches, apart from its parameters (they may be among them and count as such)."""
    gatherer = _Gatherer()
    gatherer.gather(optimizer.state)
    gatherer.follows = _follows_from(optimizer)
    gatherer.attributes(optimizer)
    return gatherer.found


def _follows_from(optimizer: Any) -> Callable[[Any], bool]:
    package = _package(type(optimizer))

    def follows(value: Any) -> bool:
        kind = type(value)
        return is_dataclass(kind) or _package(kind) == package

    return follows


class _Gatherer:
    """Collects tensors in `found`. Containers and objects are entered once."""

    def __init__(self) -> None:
        torch = sys.modules["torch"]
        self.found: list[Any] = []
        self.follows: Callable[[Any], bool] = lambda _value: True
        self._tensor, self._module, self._optimizer = (
            torch.Tensor,
            torch.nn.Module,
            torch.optim.Optimizer,
        )
        self._entered: set[int] = set()

    def gather(self, value: Any, depth: int = 0) -> None:
        if isinstance(value, self._tensor):
            self.found.append(value)
            if type(value) is not self._tensor and value.__dict__:
                self._each(list(value.__dict__.values()), value, depth)
        elif isinstance(value, _ATOMS):
            return
        elif isinstance(
            value, dict
        ):  # a mapping's copy is one step of the interpreter: another thread may change it
            self._each(list(value.values()), value, depth)
        elif isinstance(value, list | tuple | Set | deque):
            if len(value) <= _LONG or not isinstance(next(iter(value)), _ATOMS):
                self._each(list(value), value, depth)
        else:
            self._gather_object(value, depth)

    def attributes(self, value: Any, depth: int = 0) -> None:
        """What hangs on an object; the parameters in an optimizer's groups are left out."""
        if isinstance(value, self._optimizer):
            self._entered.update(id(group["params"]) for group in value.param_groups)
        names = [name for kind in type(value).__mro__ for name in _slots(kind)]
        slots = [getattr(value, name, None) for name in names]
        self._each([*slots, *list(getattr(value, "__dict__", {}).values())], value, depth)

    def _gather_object(self, value: Any, depth: int) -> None:
        if isinstance(value, self._module | Enum):
            return
        if isinstance(value, Mapping):
            self._each(list(value.values()), value, depth)
        elif isinstance(value, self._optimizer) or (
            not _is_foreign(type(value)) and self.follows(value)
        ):
            self.attributes(value, depth)

    def _each(self, values: list[Any], holder: Any, depth: int) -> None:
        if depth < _DEPTH and id(holder) not in self._entered:
            self._entered.add(id(holder))
            for value in values:
                self.gather(value, depth + 1)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_foreign(kind: type) -> bool:
    """Functions, locks, loggers; and torch's own objects: process groups, meshes, streams."""
    package = _package(kind)
    return package == "torch" or package in sys.stdlib_module_names


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
