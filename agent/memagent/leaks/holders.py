"""The largest live tensors, and what a person calls them: for the last words of a run that died."""

from __future__ import annotations

import gc
import heapq
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Holder:
    """A storage and one tensor on it. `name` is the parameter's path, its gradient's or its optimizer state's, else what made it."""

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    size_bytes: int


def largest(
    models: Sequence[Any], optimizers: Sequence[Any], count: int = 10, *, with_gradients: bool = True
) -> list[Holder]:
    """The `count` largest storages that Python objects hold, largest first; without gradients where another thread may be writing them.

    Reads no data and never synchronises. Tensors that only autograd's C++ graph keeps (saved activations) are not among them.
    """
    names = dict(_named(models, optimizers, with_gradients))
    seen: dict[tuple[str, int], tuple[int, Any]] = {}
    for tensor in _live_tensors(with_gradients):
        place = _place(tensor)
        if place is None:
            continue
        key, size = place
        if key not in seen or (id(tensor) in names and id(seen[key][1]) not in names):
            seen[key] = (size, tensor)
    found = heapq.nlargest(count, seen.values(), key=lambda item: item[0])
    return [_describe(tensor, size, names) for size, tensor in found]


def _live_tensors(with_gradients: bool) -> Iterator[Any]:
    tensor_type = sys.modules["torch"].Tensor
    for item in gc.get_objects():
        if issubclass(
            type(item), tensor_type
        ):  # isinstance() would ask proxies for their __class__, which may run their code
            yield item
            grad = item.grad if with_gradients and item.is_leaf else None
            if grad is not None:
                yield grad  # known to C++ only until somebody asks


def _place(tensor: Any) -> tuple[tuple[str, int], int] | None:
    """Device and address of a tensor's storage, and its bytes; None for one that has none."""
    try:
        storage = tensor.untyped_storage()
        size = int(storage.nbytes())
        return ((str(tensor.device), int(storage.data_ptr())), size) if size else None
    except (RuntimeError, NotImplementedError):
        return None


def _named(
    models: Sequence[Any], optimizers: Sequence[Any], with_gradients: bool
) -> Iterator[tuple[int, tuple[str, str]]]:
    """id of a tensor -> name and kind."""
    paths: dict[int, str] = {}
    for index, model in enumerate(models):
        prefix = f"model[{index}]." if len(models) > 1 else ""
        for path, parameter in model.named_parameters():
            paths[id(parameter)] = prefix + path
            yield id(parameter), (prefix + path, "parameter")
            if with_gradients and parameter.grad is not None:
                yield id(parameter.grad), (f"{prefix}{path}.grad", "gradient")
        for path, buffer in model.named_buffers():
            yield id(buffer), (prefix + path, "buffer")
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            if isinstance(state, dict):
                for key, value in state.items():
                    yield id(value), (f"{paths.get(id(parameter), 'parameter')}.{key}", "optimizer_state")


def _describe(tensor: Any, size: int, names: dict[int, tuple[str, str]]) -> Holder:
    made_by = getattr(tensor, "grad_fn", None)
    name, kind = names.get(id(tensor), (type(made_by).__name__ if made_by is not None else "tensor", "other"))
    return Holder(
        name=name,
        kind=kind,
        shape=tuple(int(length) for length in tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        size_bytes=size,
    )
