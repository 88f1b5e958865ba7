"""The largest live tensors, and what a person calls them: for the last words of a run that died.

What a person calls a large tensor that is no parameter: the variable that holds it, else the module whose output it is.
"""

from __future__ import annotations

import gc
import heapq
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from memagent.leaks import source_lines
from memagent.leaks.detectors.base import TimeBudget
from memagent.leaks.diagnosis import lines_of
from memagent.leaks.object_names import Name
from memagent.leaks.referrers import ReferrerSearch
from memagent.leaks.user_code import Scopes, own_frame


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


_LONGEST_S = 0.3
_MOST_NODES = 64
_PASSING = re.compile(
    r"^(T|Transpose|Permute|Expand|View|Reshape|ToCopy|Detach|Clone|AsStrided|Unsafe\w*)Backward\d*$"
)
"""Nodes between a parameter and the operation that it is for."""


@dataclass(frozen=True)
class Origin:
    """A readable expression; the line that sets it, as far as it is known."""

    name: str
    file: str = ""
    line: int = 0


def variables(
    tensors: Sequence[Any], error: BaseException | None = None, *, overlook: Sequence[Any] = ()
) -> list[Origin | None]:
    """The names by which the script holds these, in its running functions and those that the `error` has ended. As many as there is
    time for, in their order. `overlook`: one more list of ours that holds tensors. Raises MemoryError where there is no room to look."""
    ended = [
        frame
        for frame, _ in traceback.walk_tb(error.__traceback__ if error else None)
        if not own_frame(frame)
    ]
    scopes = Scopes(ended)
    deadline = TimeBudget.after(cpu_s=_LONGEST_S, wall_s=2 * _LONGEST_S)
    climber = ReferrerSearch(scopes, {id(tensors), id(overlook), id(ended)}, deadline)
    found: list[Origin | None] = []
    try:
        for tensor in tensors:
            name = None if deadline.is_over() else climber.name(tensor).name
            found.append(_origin(scopes, name) if name is not None and name.is_good else None)
    finally:
        climber.close()
        source_lines.forget()
    return found


def _origin(scopes: Scopes, name: Name) -> Origin:
    line = next(iter(lines_of(scopes, name)), None)
    if line is None:
        first = name.code.co_firstlineno if name.code is not None else None
        scope = source_lines.Scope(
            name.file, first, name.owner.__name__ if name.owner is not None else ""
        )
        with suppress(OSError, SyntaxError, ValueError):
            line = next(
                filter(
                    None, (source_lines.setting(scope, part) for part in reversed(name.identifiers))
                ),
                None,
            )
    return (
        Origin(name.expression, line.file, line.line)
        if line
        else Origin(name.expression, name.file)
    )


def output_of(tensor: Any, parameters: Mapping[int, str], modules: Mapping[str, str]) -> str:
    """`output of layers.3.fc1 (Linear)`, `relu after layers.3.fc1 (Linear)`, or `result of relu`: by the nearest parameter in its graph.

    parameters: names by id. modules: class names by path."""
    node = tensor.grad_fn
    if node is None:
        return "tensor"
    operation = _operation(node)
    path, is_own = _nearest(node, parameters)
    if path is None:
        return f"result of {operation}"
    module = path.rpartition(".")[0] or path
    place = f"{module} ({modules[module]})" if module in modules else module
    return f"output of {place}" if is_own else f"{operation} after {place}"


def _nearest(node: Any, parameters: Mapping[int, str]) -> tuple[str | None, bool]:
    """The name of the nearest parameter, breadth first, and whether it is this very node's."""
    todo: list[tuple[Any, bool]] = [(following, True) for following, _ in node.next_functions]
    for _ in range(_MOST_NODES):
        if not todo:
            break
        following, is_own = todo.pop(0)
        if following is None:
            continue
        name = parameters.get(id(getattr(following, "variable", None)))
        if name is not None:
            return name, is_own
        passes = is_own and _PASSING.match(type(following).__name__) is not None
        todo += [(further, passes) for further, _ in following.next_functions]
    return None, False


def _operation(node: Any) -> str:
    """`log_softmax` of LogSoftmaxBackward0."""
    name = re.sub(r"Backward\d*$", "", type(node).__name__)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
