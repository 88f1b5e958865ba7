"""Measure bytes by component and device in one walk over models and optimizers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from memagent.components.holders import module_tensors, optimizer_tensors, parameter_tensors
from memagent.components.storages import StorageSizes


@dataclass(frozen=True)
class Components:
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
    modules = _modules_of(models)
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
    return _parameters_of(_modules_of(models), optimizers)


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


def _modules_of(models: Sequence[Any]) -> list[Any]:
    """Return the distinct modules of the models.

    `Module.modules()` builds a name for each module, which takes most of its time.
    """
    modules: dict[int, Any] = {}
    queue = list(models)
    for module in queue:  # grows during the loop
        if id(module) not in modules:
            modules[id(module)] = module
            if module._modules:
                queue.extend(child for child in list(module._modules.values()) if child is not None)
    return list(modules.values())
