"""From models and optimizers to bytes by component and device, in one walk."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from memagent.components.holders import held_by_module, held_by_optimizer, held_by_parameter
from memagent.components.storages import Ledger


@dataclass(frozen=True)
class Components:
    """Bytes on one device."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    buffers_bytes: int


EMPTY = Components(0, 0, 0, 0)


def measure(
    models: Sequence[Any], optimizers: Sequence[Any], *, device: str | None = None
) -> Components:
    """Bytes now held on `device` ("cpu", "cuda:0"), or on all devices together."""
    found = by_device(models, optimizers)
    if device is not None:
        return found.get(device, EMPTY)
    return Components(
        parameters_bytes=sum(each.parameters_bytes for each in found.values()),
        gradients_bytes=sum(each.gradients_bytes for each in found.values()),
        optimizer_state_bytes=sum(each.optimizer_state_bytes for each in found.values()),
        buffers_bytes=sum(each.buffers_bytes for each in found.values()),
    )


def by_device(
    models: Sequence[Any], optimizers: Sequence[Any], *, busy: Sequence[Any] | None = ()
) -> dict[str, Components]:
    """Bytes now held on each device that holds any, by its name: "cpu", "cuda:0", "mps:0".

    `busy` are optimizers whose parameters another thread may be training at this moment, None if any may be. Their gradients are not
    looked at: autograd writes `.grad` without the interpreter's lock, and who reads it meanwhile may bring the process down.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    modules = _modules_of(models)
    parameters = _parameters_of(modules, optimizers)
    attached, attached_gradients = held_by_parameter(parameters)
    others = {
        id(p)
        for optimizer in busy or ()
        for group in optimizer.param_groups
        for p in group["params"]
    }
    calm = [p for p in parameters if id(p) not in others] if busy is not None else ()
    gradients = [gradient for p in calm if p.is_leaf and (gradient := p.grad) is not None]
    buffers = (
        buffer for module in modules for buffer in module._buffers.values() if buffer is not None
    )
    ledger = Ledger(torch)
    return _sorted_by_device(
        ledger.bytes_of(chain(parameters, attached, held_by_module(modules))),
        ledger.bytes_of(chain(gradients, attached_gradients)),
        buffers_bytes=ledger.bytes_of(buffers),
        optimizer_state_bytes=ledger.bytes_of(
            chain.from_iterable(map(held_by_optimizer, optimizers))
        ),
    )


def parameters_of(models: Sequence[Any], optimizers: Sequence[Any]) -> list[Any]:
    """Parameters of the models, and those that only the optimizers have; each once."""
    return _parameters_of(_modules_of(models), optimizers)


def distinct(items: Iterable[Any]) -> Iterator[Any]:
    """Each object once, in order."""
    seen: set[int] = set()
    for item in items:
        if id(item) not in seen:
            seen.add(id(item))
            yield item


def _parameters_of(modules: Sequence[Any], optimizers: Sequence[Any]) -> list[Any]:
    found = {
        id(parameter): parameter for module in modules for parameter in module._parameters.values()
    }
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        found.update((id(parameter), parameter) for parameter in group["params"])
    found.pop(id(None), None)
    return list(found.values())


def _modules_of(models: Sequence[Any]) -> list[Any]:
    """The models' modules, each once. `Module.modules()` spells a name for each of them, which takes most of its time."""
    found: dict[int, Any] = {}
    waiting = list(models)
    for module in waiting:  # grows while it is walked
        if id(module) not in found:
            found[id(module)] = module
            if module._modules:
                waiting.extend(
                    child for child in list(module._modules.values()) if child is not None
                )
    return list(found.values())


def _sorted_by_device(
    parameters_bytes: dict[Any, int],
    gradients_bytes: dict[Any, int],
    *,
    optimizer_state_bytes: dict[Any, int],
    buffers_bytes: dict[Any, int],
) -> dict[str, Components]:
    devices = dict.fromkeys(
        chain(parameters_bytes, gradients_bytes, buffers_bytes, optimizer_state_bytes)
    )
    return {
        str(device): Components(
            parameters_bytes=parameters_bytes.get(device, 0),
            gradients_bytes=gradients_bytes.get(device, 0),
            optimizer_state_bytes=optimizer_state_bytes.get(device, 0),
            buffers_bytes=buffers_bytes.get(device, 0),
        )
        for device in devices
    }
