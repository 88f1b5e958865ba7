"""Measure bytes by component and device in one walk over models and optimizers.

Tensors outside parameters and buffers are collected from parameters, optimizers and quantized
modules. The collector follows values through dicts, lists and objects. It never enters modules
(they are measured separately, or not at all) or objects of torch and the standard library, except
optimizers. In `.state` it follows any other object. On the optimizer itself it follows only
dataclasses and objects of the optimizer's package, so that a reference to a trainer doesn't make
all of the trainer's tensors optimizer state.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import is_dataclass
from enum import Enum
from itertools import chain
from typing import Any

import msgspec

from memagent.components.storages import StorageSizes

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


class Components(msgspec.Struct, frozen=True):
    """Bytes on one device."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    buffers_bytes: int


EMPTY = Components(0, 0, 0, 0)


def measure_by_device(
    models: Sequence[Any], optimizers: Sequence[Any], *, busy: Sequence[Any] | None = ()
) -> dict[str, Components]:
    """Return the bytes on each device by its name: "cpu", "cuda:0", "mps:0".

    `busy` are optimizers whose parameters another thread may be training now; None means all. Their
    gradients are skipped: autograd writes `.grad` without the GIL, and reading it at the same time
    can crash the process.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    modules = modules_of(models)
    parameters = _parameters_of(modules, optimizers)
    attributes, attribute_gradients = parameter_tensors(parameters)
    skipped = {
        id(parameter)
        for optimizer in busy or ()
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    readable = [p for p in parameters if id(p) not in skipped] if busy is not None else ()
    gradients = [gradient for p in readable if p.is_leaf and (gradient := p.grad) is not None]
    buffers = (
        buffer for module in modules for buffer in module._buffers.values() if buffer is not None
    )
    state = chain.from_iterable(map(optimizer_tensors, optimizers))
    sizes = StorageSizes(torch)
    # The order of these calls decides which component a shared storage counts for: see rule 4.
    parameters_bytes = sizes.add(chain(parameters, attributes, module_tensors(modules)))
    gradients_bytes = sizes.add(chain(gradients, attribute_gradients))
    buffers_bytes = sizes.add(buffers)
    state_bytes = sizes.add(state)
    return {
        str(device): Components(
            parameters_bytes=parameters_bytes.get(device, 0),
            gradients_bytes=gradients_bytes.get(device, 0),
            optimizer_state_bytes=state_bytes.get(device, 0),
            buffers_bytes=buffers_bytes.get(device, 0),
        )
        for device in {**parameters_bytes, **gradients_bytes, **buffers_bytes, **state_bytes}
    }


def parameters_of(models: Sequence[Any], optimizers: Sequence[Any]) -> list[Any]:
    """Return the distinct parameters of the models and of the optimizers."""
    return _parameters_of(modules_of(models), optimizers)


def distinct(items: Iterable[Any]) -> Iterator[Any]:
    """Yield each object once, in order."""
    yielded: set[int] = set()
    for item in items:
        if id(item) not in yielded:
            yielded.add(id(item))
            yield item


def state_fingerprint(optimizers: Sequence[Any]) -> list[int]:
    """Return a fingerprint of the optimizers' state for the training thread.

    Costs O(optimizers + parameter groups), less than a microsecond a step. It changes with:

    - an entry added (the first step, a late first gradient) or removed;
    - a new state as a whole (`load_state_dict`), new groups and parameters;
    - the newest entry's number of values, and the length of its lists (LBFGS's history).

    It misses tensors replaced one for one (another device or dtype), growth of an older entry, and
    state that an optimizer keeps outside `.state`.
    """
    fingerprint: list[int] = []
    for optimizer in optimizers:
        state = optimizer.state
        fingerprint += (id(state), len(state))
        for group in optimizer.param_groups:
            fingerprint.append(len(group["params"]))
        if state:
            newest = state[next(reversed(state))]
            if type(newest) is dict:
                fingerprint.append(len(newest))
                for value in newest.values():
                    if type(value) is list:
                        fingerprint.append(len(value))
    return fingerprint


def _parameters_of(modules: Sequence[Any], optimizers: Sequence[Any]) -> list[Any]:
    parameters = {
        id(parameter): parameter for module in modules for parameter in module._parameters.values()
    }
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        parameters.update((id(parameter), parameter) for parameter in group["params"])
    parameters.pop(id(None), None)
    return list(parameters.values())


def modules_of(models: Sequence[Any]) -> list[Any]:
    """Return the distinct modules of the models.

    `Module.modules()` builds a name for each module, which takes most of its time. A script's class
    may override it too, like `parameters()`: no code of a script runs here.
    """
    modules: dict[int, Any] = {}
    queue = list(models)
    for module in queue:  # grows during the loop
        if id(module) not in modules:
            modules[id(module)] = module
            if module._modules:
                queue.extend(child for child in list(module._modules.values()) if child is not None)
    return list(modules.values())


def named_modules_of(model: Any, prefix: str = "") -> dict[str, Any]:
    """Return the distinct modules of a model by path, as `named_modules()` names them."""
    paths: dict[int, tuple[str, Any]] = {}
    stack = [(prefix, model)]
    while stack:
        path, module = stack.pop()
        if module is not None and id(module) not in paths:
            paths[id(module)] = (path, module)
            children = list(module._modules.items())
            start = f"{path}." if path else ""
            stack.extend((start + name, child) for name, child in reversed(children))
    return dict(paths.values())
