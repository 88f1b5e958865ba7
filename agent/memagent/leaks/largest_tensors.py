"""The largest live tensors with readable names, for the report of an out-of-memory error.

A tensor is named as a parameter, its gradient or its optimizer state; else by the variable that
holds it; else by the module or operation that computed it.
"""

from __future__ import annotations

import heapq
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from memagent.components import named_modules_of
from memagent.components.live_objects import live_tensors
from memagent.leaks import syntax
from memagent.leaks.autograd_graphs import is_leaf, node_of
from memagent.leaks.object_names import ObjectName
from memagent.leaks.origins import lines_of
from memagent.leaks.referrers import ReferrerSearch
from memagent.leaks.source_lines import SourceScope, first_assignment
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.user_code import UserScopes, is_own_frame

_MAX_CPU_S = 0.3
_MAX_NODES = 64
_PASS_THROUGH = re.compile(
    r"^(T|Transpose|Permute|Expand|View|Reshape|ToCopy|Detach|Clone|AsStrided|Unsafe\w*)"
    r"Backward\d*$"
)
"""Autograd nodes between a parameter and the operation that uses it."""


@dataclass(frozen=True)
class LargeTensor:
    """A storage and one tensor on it. `file` and `line` set the variable that holds it."""

    name: str
    kind: str
    """`parameter`, `gradient`, `buffer`, `optimizer_state` or `other`."""
    shape: tuple[int, ...]
    dtype: str
    device: str
    size_bytes: int
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class TensorSource:
    """A readable expression, and the line that sets it, if known."""

    name: str
    file: str = ""
    line: int = 0


def largest_tensors(
    models: Sequence[Any],
    optimizers: Sequence[Any],
    count: int = 10,
    *,
    with_gradients: bool = True,
    error: BaseException | None = None,
) -> list[LargeTensor]:
    """Return the `count` largest storages that Python objects hold, largest first.

    with_gradients: False if another thread may be writing gradients. error: also search the
    variables of the functions that it ended. Reads no data and never synchronizes. Tensors that
    only autograd's C++ graph keeps (saved activations) aren't included.
    """
    names = dict(_model_names(models, optimizers, with_gradients))
    storages: dict[tuple[str, int], tuple[int, Any]] = {}
    for tensor in _live_tensors(with_gradients):
        storage = _storage_of(tensor)
        if storage is None:
            continue
        key, size = storage
        # Of several tensors on one storage, take one that the model has a name for.
        if key not in storages or (id(tensor) in names and id(storages[key][1]) not in names):
            storages[key] = (size, tensor)
    # with the key, since a tie of sizes would compare the values of tensors
    largest = heapq.nlargest(count, storages.values(), key=lambda item: item[0])
    sizes, tensors = [size for size, _ in largest], [tensor for _, tensor in largest]
    # From here, `tensors` is the only list here that refers to them: the name search ignores it.
    storages.clear()
    largest.clear()
    sources = _sources(tensors, names, models, error)
    return [
        _describe(tensor, size, names, sources) for size, tensor in zip(sizes, tensors, strict=True)
    ]


def _sources(
    tensors: Sequence[Any],
    names: dict[int, tuple[str, str]],
    models: Sequence[Any],
    error: BaseException | None,
) -> dict[int, TensorSource]:
    """Return the sources of tensors that no model or optimizer has a name for, by id."""
    unnamed = [tensor for tensor in tensors if id(tensor) not in names]
    variables: list[TensorSource | None] = [None] * len(unnamed)
    with suppress(MemoryError):
        variables = variables_holding(unnamed, error, ignored=tensors)
    parameters = {key: name for key, (name, kind) in names.items() if kind == "parameter"}
    modules = {
        prefix + path: type(module).__name__
        for prefix, model in _with_prefixes(models)
        for path, module in named_modules_of(model).items()
    }
    return {
        id(tensor): source or TensorSource(describe_output(tensor, parameters, modules))
        for tensor, source in zip(unnamed, variables, strict=True)
    }


def _with_prefixes(models: Sequence[Any]) -> list[tuple[str, Any]]:
    if len(models) == 1:
        return [("", models[0])]
    return [(f"model[{index}].", model) for index, model in enumerate(models)]


def _live_tensors(with_gradients: bool) -> Iterator[Any]:
    for item in live_tensors():
        yield item
        # Until Python asks for it, a gradient is known to C++ only.
        grad = item.grad if with_gradients and is_leaf(item) else None
        if grad is not None:
            yield grad


def _storage_of(tensor: Any) -> tuple[tuple[str, int], int] | None:
    """Return device, address and bytes of a tensor's storage, or None if it has none."""
    try:
        storage = tensor.untyped_storage()
        size = int(storage.nbytes())
        return ((str(tensor.device), int(storage.data_ptr())), size) if size else None
    except (RuntimeError, NotImplementedError):
        return None


def _model_names(
    models: Sequence[Any], optimizers: Sequence[Any], with_gradients: bool
) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield (id of a tensor, (name, kind))."""
    paths: dict[int, str] = {}
    for prefix, model in _with_prefixes(models):
        for module_path, module in named_modules_of(model, prefix.rstrip(".")).items():
            start = f"{module_path}." if module_path else ""
            for name, parameter in module._parameters.items():
                if parameter is None or id(parameter) in paths:
                    continue
                path = paths[id(parameter)] = start + name
                yield id(parameter), (path, "parameter")
                if with_gradients and parameter.grad is not None:
                    yield id(parameter.grad), (f"{path}.grad", "gradient")
            for name, buffer in module._buffers.items():
                yield id(buffer), (start + name, "buffer")
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            path = paths.get(id(parameter), "parameter")
            for key, value in state.items() if isinstance(state, dict) else ():
                yield id(value), (f"{path}.{key}", "optimizer_state")


def _describe(
    tensor: Any, size: int, names: dict[int, tuple[str, str]], sources: dict[int, TensorSource]
) -> LargeTensor:
    source = sources.get(id(tensor), TensorSource(""))
    name, kind = names.get(id(tensor), (source.name, "other"))
    return LargeTensor(
        name=name,
        kind=kind,
        shape=tuple(int(length) for length in tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        size_bytes=size,
        file=source.file,
        line=source.line,
    )


# -- names by variable --------------------------------------------------------------------------


def variables_holding(
    tensors: Sequence[Any], error: BaseException | None = None, *, ignored: Sequence[Any] = ()
) -> list[TensorSource | None]:
    """Return the names by which the script's functions hold these tensors, as far as time allows.

    Includes functions that the `error` ended. ignored: one more own list that refers to tensors.
    Raises MemoryError if there is no room for the search.
    """
    traceback_frames = traceback.walk_tb(error.__traceback__ if error else None)
    ended = [frame for frame, _ in traceback_frames if not is_own_frame(frame)]
    scopes = UserScopes(ended)
    budget = TimeBudget(_MAX_CPU_S)
    search = ReferrerSearch(scopes, {id(tensors), id(ignored), id(ended)}, budget)
    sources: list[TensorSource | None] = []
    try:
        for tensor in tensors:
            name = None if budget.is_over() else search.name(tensor).name
            is_known = name is not None and name.is_in_script
            sources.append(_source(scopes, name) if name is not None and is_known else None)
    finally:
        search.close()
        syntax.clear_cache()
    return sources


def _source(scopes: UserScopes, name: ObjectName) -> TensorSource:
    line = next(iter(lines_of(scopes, name)), None)
    if line is None:
        first = name.code.co_firstlineno if name.code is not None else None
        owner = name.owner.__name__ if name.owner is not None else ""
        scope = SourceScope(name.file, first, owner)
        with suppress(OSError, SyntaxError, ValueError):
            identifiers = reversed(name.identifiers)
            lines = (first_assignment(scope, part) for part in identifiers)
            line = next(filter(None, lines), None)
    if line is None:
        return TensorSource(name.expression, name.file)
    return TensorSource(name.expression, line.file, line.line)


# -- names by operation -------------------------------------------------------------------------


def describe_output(tensor: Any, parameters: Mapping[int, str], modules: Mapping[str, str]) -> str:
    """Return what computed a tensor, by the nearest parameter in its graph.

    For example `output of layers.3.fc1 (Linear)`, `relu after layers.3.fc1 (Linear)`, or
    `result of relu`. parameters: names by id. modules: class names by path.
    """
    node = node_of(tensor)
    if node is None:
        return "tensor"
    operation = _operation_name(node)
    path, is_direct = _nearest_parameter(node, parameters)
    if path is None:
        return f"result of {operation}"
    module = path.rpartition(".")[0] or path
    label = f"{module} ({modules[module]})" if module in modules else module
    return f"output of {label}" if is_direct else f"{operation} after {label}"


def _nearest_parameter(node: Any, parameters: Mapping[int, str]) -> tuple[str | None, bool]:
    """Return the nearest parameter, breadth first, and whether it's an input of this very node."""
    todo: list[tuple[Any, bool]] = [(following, True) for following, _ in node.next_functions]
    for _ in range(_MAX_NODES):
        if not todo:
            break
        following, is_direct = todo.pop(0)
        if following is None:
            continue
        name = parameters.get(id(getattr(following, "variable", None)))
        if name is not None:
            return name, is_direct
        passes = is_direct and _PASS_THROUGH.match(type(following).__name__) is not None
        todo += [(further, passes) for further, _ in following.next_functions]
    return None, False


def _operation_name(node: Any) -> str:
    """Return `log_softmax` for LogSoftmaxBackward0."""
    name = re.sub(r"Backward\d*$", "", type(node).__name__)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
