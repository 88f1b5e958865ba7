"""Floating-point operations of an operator, by torch's formulas (torch/utils/flop_counter.py)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

_HEADS_DIM = 1
"""Of queries, keys and values in the operators of attention."""
_REFUSALS = (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError)


def count_operations(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> int:
    """Return the operations of one call; 0 if torch has no formula for the operator."""
    formula: Callable[..., Any] | None = flop_registry.get(func._overloadpacket)
    if formula is None:
        return 0
    return _count(partial(formula, **kwargs, out_val=output), args)


def _count(formula: Callable[..., int], args: tuple[Any, ...]) -> int:
    """Apply a formula. Before torch 2.13 that of attention refuses groups of heads.

    Their keys and values count as repeated for each query head. Other refusals count as 0, because
    a trace goes on without a count of its operations.
    """
    with suppress(*_REFUSALS):
        return int(formula(*args))
    with suppress(*_REFUSALS):
        return int(formula(*_repeat_heads(args)))
    return 0


def _repeat_heads(args: tuple[Any, ...]) -> tuple[Any, ...]:
    query, key, value, *rest = args
    heads = query.shape[_HEADS_DIM]
    return (query, *(_shape_with(tensor, heads) for tensor in (key, value)), *rest)


def _shape_with(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Return a tensor on no device with the shape of `tensor`, but for the number of heads."""
    shape = list(tensor.shape)
    shape[_HEADS_DIM] = heads
    return torch.empty(shape, dtype=tensor.dtype, device="meta")
