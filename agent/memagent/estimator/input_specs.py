"""A step's inputs as a value: their batch, and the same inputs with another batch or dtype. No
torch.

Tensors become `(shape, dtype name)`, which is all that an estimate needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from memagent.errors import EstimateError

TensorSpec = tuple[tuple[int, ...], str]
"""The sizes of a tensor's dimensions, and its dtype's name."""


def tensor_specs(value: Any) -> Iterator[TensorSpec]:
    """Iterate over the tensors in the inputs, and `(shape, dtype name)` pairs."""
    spec = _tensor_spec(value)
    if spec is not None:
        yield spec
    elif isinstance(value, Mapping | tuple | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensor_specs(item)


def is_tensor(value: Any) -> bool:
    """Return True for a tensor, and for a `(shape, dtype name)` pair in place of one."""
    return _tensor_spec(value) is not None


def batch_of(value: Any) -> int:
    """Return the first dimension of the first tensor. Raises EstimateError if there is none."""
    for shape, _ in tensor_specs(value):
        if shape:
            return shape[0]
    raise EstimateError("the inputs hold no tensor whose first dimension could be the batch")


def with_batch(value: Any, batch: int, *, instead_of: int) -> Any:
    """Return the inputs with `batch` samples; tensors with another first dimension don't change."""

    def resized(spec: TensorSpec) -> TensorSpec:
        shape, dtype = spec
        return ((batch, *shape[1:]), dtype) if shape[:1] == (instead_of,) else spec

    return convert_tensors(value, resized)


def in_bf16(value: Any) -> Any:
    """Return fp32 inputs in bf16."""

    def converted(spec: TensorSpec) -> TensorSpec:
        return (spec[0], "bfloat16") if spec[1] == "float32" else spec

    return convert_tensors(value, converted)


def convert_tensors(value: Any, convert: Callable[[TensorSpec], Any]) -> Any:
    """Return the inputs with each tensor replaced by what `convert` makes of its spec."""
    spec = _tensor_spec(value)
    if spec is not None:
        return convert(spec)
    if isinstance(value, Mapping):
        return {key: convert_tensors(item, convert) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(convert_tensors(item, convert) for item in value)
    return value


def _tensor_spec(value: Any) -> TensorSpec | None:
    """Return the shape and dtype of a tensor or a `(shape, dtype name)` pair."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return tuple(value.shape), str(value.dtype).removeprefix("torch.")
    # (shape, dtype name) means a tensor; a tuple of two tensors or names doesn't
    is_pair = isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[1], str)
    if is_pair and isinstance(value[0], tuple | list):
        return tuple(value[0]), value[1]
    return None
