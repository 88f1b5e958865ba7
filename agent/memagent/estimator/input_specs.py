"""The inputs of a step as a value: how many samples they hold, and the same with another number or dtype. Tensors become
`(shape, dtype name)`, which is all that an estimate needs. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memagent.errors import EstimateError

Spec = tuple[tuple[int, ...], str]


def batch_of(value: Any) -> int:
    """Samples: the first dimension of the first tensor. Raises EstimateError where there is none."""
    first = next((spec for spec in _specs(value) if spec[0]), None)
    if first is None:
        raise EstimateError("the inputs hold no tensor whose first dimension could be the batch")
    return first[0][0]


def with_batch(value: Any, size: int, *, instead_of: int) -> Any:
    """The same with `size` samples: tensors whose first dimension is `instead_of`; others stay."""
    return _each(
        value,
        lambda spec: ((size, *spec[0][1:]), spec[1]) if spec[0][:1] == (instead_of,) else spec,
    )


def in_bf16(value: Any) -> Any:
    """fp32 inputs in bf16."""
    return _each(value, lambda spec: (spec[0], "bfloat16" if spec[1] == "float32" else spec[1]))


def _each(value: Any, change: Callable[[Spec], Spec]) -> Any:
    spec = _spec(value)
    if spec is not None:
        return change(spec)
    if isinstance(value, Mapping):
        return {key: _each(item, change) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_each(item, change) for item in value)
    return value


def _specs(value: Any) -> list[Spec]:
    found: list[Spec] = []

    def noted(spec: Spec) -> Spec:
        found.append(spec)
        return spec

    _each(value, noted)
    return found


def _spec(value: Any) -> Spec | None:
    """Shape and dtype name of a tensor or of what stands for one."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return tuple(value.shape), str(value.dtype).removeprefix("torch.")
    is_pair = isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[1], str)
    if is_pair and isinstance(value[0], tuple | list):
        return tuple(value[0]), value[1]
    return None
