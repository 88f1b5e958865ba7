"""Tensors outside parameters and buffers: on parameters, in optimizers, in quantized modules.

The collector follows values through dicts, lists and objects. It never enters modules (they are
measured separately, or not at all) or objects of torch and the standard library, except optimizers.
In `.state` it follows any other object. On the optimizer itself it follows only dataclasses and
objects of the optimizer's package, so that a reference to a trainer doesn't make all of the
trainer's tensors optimizer state.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

_MAX_DEPTH = 8
_ATOMS = (int, float, str, bool, bytes, type(None), complex, type)
_MAX_MIXED_LIST = 1000
"""A longer list that begins with a number or text has no tensors, and the collector skips it."""
_MODULE_HOLDERS = {"bitsandbytes": ("state", "quant_state"), "hqq": ("meta",)}
"""Attributes in which a package's modules keep parts of their weights."""


def parameter_tensors(parameters: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Return the tensors in attributes of parameters: those of the weights, and the gradients."""
    weights, gradients = _TensorCollector(), _TensorCollector()
    for parameter in parameters:
        attributes = parameter.__dict__
        if attributes:
            for name, value in list(attributes.items()):
                (gradients if "grad" in name else weights).collect(value)
    return weights.tensors, gradients.tensors


def module_tensors(modules: Collection[Any]) -> list[Any]:
    """Return the tensors that quantized modules keep in objects outside their parameters."""
    collector = _TensorCollector()
    names = {kind: _MODULE_HOLDERS.get(_package(kind), ()) for kind in set(map(type, modules))}
    if any(names.values()):
        for module in modules:
            for name in names[type(module)]:
                collector.collect(getattr(module, name, None))
    return collector.tensors


def optimizer_tensors(optimizer: Any) -> list[Any]:
    """Return every tensor that is reachable from an optimizer.

    Some of its parameters may be among them; they count as parameters.
    """
    collector = _TensorCollector()
    collector.collect(optimizer.state)
    package = _package(type(optimizer))
    collector.follows = lambda value: is_dataclass(type(value)) or _package(type(value)) == package
    collector.collect_attributes(optimizer)
    return collector.tensors


class _TensorCollector:
    """Collects `tensors`. Enters each container and object once."""

    def __init__(self) -> None:
        torch = sys.modules["torch"]
        self.tensors: list[Any] = []
        self.follows: Callable[[Any], bool] = lambda _value: True
        self._tensor_type = torch.Tensor
        self._module_type = torch.nn.Module
        self._optimizer_type = torch.optim.Optimizer
        self._entered: set[int] = set()

    def collect(self, value: Any, depth: int = 0) -> None:
        """Collect the tensors in a value."""
        if isinstance(value, self._tensor_type):
            self.tensors.append(value)
            if type(value) is not self._tensor_type and value.__dict__:
                self._collect_items(list(value.__dict__.values()), value, depth)
        elif isinstance(value, _ATOMS):
            return
        elif isinstance(value, dict):
            # Another thread may change it. The copy is one step of the interpreter.
            self._collect_items(list(value.values()), value, depth)
        elif isinstance(value, list | tuple | Set | deque):
            if len(value) <= _MAX_MIXED_LIST or not isinstance(next(iter(value)), _ATOMS):
                self._collect_items(list(value), value, depth)
        elif isinstance(value, self._module_type | Enum):
            return
        elif isinstance(value, Mapping):
            self._collect_items(list(value.values()), value, depth)
        elif isinstance(value, self._optimizer_type) or (
            not _is_library_type(type(value)) and self.follows(value)
        ):
            self.collect_attributes(value, depth)

    def collect_attributes(self, value: Any, depth: int = 0) -> None:
        """Collect the tensors in attributes of an object, except the parameters of its groups."""
        if isinstance(value, self._optimizer_type):
            self._entered.update(id(group["params"]) for group in value.param_groups)
        names = [name for kind in type(value).__mro__ for name in _slots(kind)]
        slots = [getattr(value, name, None) for name in names]
        self._collect_items([*slots, *getattr(value, "__dict__", {}).values()], value, depth)

    def _collect_items(self, values: list[Any], holder: Any, depth: int) -> None:
        if depth < _MAX_DEPTH and id(holder) not in self._entered:
            self._entered.add(id(holder))
            for value in values:
                self.collect(value, depth + 1)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_library_type(kind: type) -> bool:
    """Return True for functions, locks, loggers, and torch's process groups, meshes and streams."""
    package = _package(kind)
    return package == "torch" or package in sys.stdlib_module_names


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
