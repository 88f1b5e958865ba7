"""The largest live tensors, and what a person calls them: for the last words of a run that died."""

from __future__ import annotations

import gc
import heapq
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from memagent.leaks.tensor_names import Origin, output_of, variables


@dataclass(frozen=True)
class Holder:
    """A storage and one tensor on it. `name` is the parameter's path, its gradient's or its optimizer state's; else the variable that holds
    it, with the `file` and `line` that set it; else the module that made it."""

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    size_bytes: int
    file: str = ""
    line: int = 0


def largest(
    models: Sequence[Any],
    optimizers: Sequence[Any],
    count: int = 10,
    *,
    with_gradients: bool = True,
    error: BaseException | None = None,
) -> list[Holder]:
    """The `count` largest storages that Python objects hold, largest first; without gradients where another thread may be writing them.
    The functions that the `error` has ended are asked for their variables, too.

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
    sizes, tensors = [size for size, _ in found], [tensor for _, tensor in found]
    seen.clear()
    found.clear()  # only one list of ours still refers to them
    origins = _origins(tensors, names, models, error)
    return [
        _describe(tensor, size, names, origins) for size, tensor in zip(sizes, tensors, strict=True)
    ]


def _origins(
    tensors: Sequence[Any],
    names: dict[int, tuple[str, str]],
    models: Sequence[Any],
    error: BaseException | None,
) -> dict[int, Origin]:
    """Of those that no model or optimizer has a name for, by id."""
    unnamed = [tensor for tensor in tensors if id(tensor) not in names]
    held: list[Origin | None] = [None] * len(unnamed)
    with suppress(MemoryError):  # there may be no room to look around
        held = variables(unnamed, error, overlook=tensors)
    parameters = {key: name for key, (name, kind) in names.items() if kind == "parameter"}
    modules = {prefix + path: type(module).__name__ for prefix, model in _prefixed(models)
               for path, module in model.named_modules()}  # fmt: skip
    return {
        id(tensor): origin or Origin(output_of(tensor, parameters, modules))
        for tensor, origin in zip(unnamed, held, strict=True)
    }


def _prefixed(models: Sequence[Any]) -> list[tuple[str, Any]]:
    return [
        (f"model[{index}]." if len(models) > 1 else "", model) for index, model in enumerate(models)
    ]


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
    for prefix, model in _prefixed(models):
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
                    yield (
                        id(value),
                        (f"{paths.get(id(parameter), 'parameter')}.{key}", "optimizer_state"),
                    )


def _describe(
    tensor: Any, size: int, names: dict[int, tuple[str, str]], origins: dict[int, Origin]
) -> Holder:
    origin = origins.get(id(tensor), Origin(""))
    name, kind = names.get(id(tensor), (origin.name, "other"))
    return Holder(
        name=name,
        kind=kind,
        shape=tuple(int(length) for length in tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        size_bytes=size,
        file=origin.file,
        line=origin.line,
    )
