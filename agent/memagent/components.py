"""What the bytes of a model and its optimizer are for: exact, by walking each storage once.

Views and tied weights share a storage, which counts once, for the first component that holds it, in the order parameters, gradients,
buffers, optimizer state. Sharded tensors (DTensor, FSDP) count their local shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any


@dataclass(frozen=True)
class Components:
    """Bytes on one device."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    buffers_bytes: int


def measure(models: Sequence[Any], optimizers: Sequence[Any], *, device: str | None = None) -> Components:
    """Bytes now held, on `device` ("cpu", "cuda:0") or on all devices. Reads no tensor's data and never synchronises."""
    seen: set[tuple[str, int]] = set()
    parameters = parameters_of(models, optimizers)
    return Components(
        parameters_bytes=_bytes(parameters, seen, device),
        gradients_bytes=_bytes((p.grad for p in parameters if p.grad is not None), seen, device),
        buffers_bytes=_bytes((buffer for model in models for buffer in model.buffers()), seen, device),
        optimizer_state_bytes=_bytes(
            (tensor for optimizer in optimizers for tensor in _tensors(list(optimizer.state.values()))), seen, device
        ),
    )


def parameters_of(models: Sequence[Any], optimizers: Sequence[Any]) -> list[Any]:
    """Parameters of the models, and those that only the optimizers have; each once."""
    in_models = (parameter for model in models for parameter in model.parameters())
    in_optimizers = (
        parameter for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]
    )
    return list(distinct(chain(in_models, in_optimizers)))


def distinct(items: Iterable[Any]) -> Iterator[Any]:
    """Each object once, in order."""
    seen: set[int] = set()
    for item in items:
        if id(item) not in seen:
            seen.add(id(item))
            yield item


def _tensors(value: Any) -> Iterator[Any]:
    """Tensors anywhere in nested dicts, lists and tuples."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "untyped_storage"):
        yield value


def _bytes(tensors: Iterable[Any], seen: set[tuple[str, int]], device: str | None) -> int:
    total = 0
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)  # DTensor
        where = str(local.device)
        if device is not None and where != device:
            continue
        storage = local.untyped_storage()
        key = (where, storage.data_ptr())
        if key not in seen:
            seen.add(key)
            total += storage.nbytes()
    return total
