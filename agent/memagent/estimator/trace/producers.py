"""Questions of a program that reads a tensor, by the operators that made the tensor.

1. A sum that is compared with the number of its terms asks "all?".
2. A random number that is compared with a probability asks whether to drop a layer (LayerDrop).
3. Places that `nonzero` found are evenly spread: all of them, if each element counts as true. So a
   loop over experts visits each of them, and skips the place beyond the last one.
4. The sum of a mask counts all of its elements, as if nothing is padded. So does the largest sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

LIKELY, UNLIKELY = "a likely chance", "an unlikely chance"
_RANDOM = "aten::rand"
_SUMS = ("aten::sum", "aten::sum.dim_IntList")
_COPIES = ("aten::_to_copy", "aten::clone", "aten::max", "aten::amax")
"""Operators whose result is one of the counts in their argument."""
_PLACE_BYTES = 8


class Producers:
    """The operators of one-element tensors, the masks of places, and comparisons of a place."""

    def __init__(self) -> None:
        self._operators: dict[int, str] = {}
        self._masks: dict[int, tuple[int, ...]] = {}
        self._comparisons: dict[int, bool] = {}
        self._numbers: set[int] = set()
        """Masks as numbers."""
        self._counts: dict[int, int] = {}

    def update(self, op: str, output: Any, args: tuple[Any, ...]) -> None:
        """Record how an output was made."""
        if not isinstance(output, torch.Tensor):
            return
        key = output.untyped_storage()._cdata
        if op in _SUMS or op in _COPIES:
            self._count(key, op, output, args[0])
        if op == "aten::nonzero":
            self._masks[key] = tuple(map(int, args[0].shape))
        elif output.numel() == 1:
            self._operators[key] = self._question(op, args)
            if op == "aten::eq.Scalar" and (place := self.place_of(args[0])) is not None:
                self._comparisons[key] = place == args[1]

    def operator_of(self, tensor: torch.Tensor) -> str:
        """Return the operator that made a tensor, or the question that it asks; "" if unknown."""
        return self._operators.get(tensor.untyped_storage()._cdata, "")

    def value_of(self, tensor: torch.Tensor) -> int | bool | None:
        """Return the value of a place, of its comparison, or of a count; None for other tensors."""
        key = tensor.untyped_storage()._cdata
        known = self._comparisons.get(key, self._counts.get(key))
        return self.place_of(tensor) if known is None else known

    def place_of(self, tensor: torch.Tensor) -> int | None:
        """Return the coordinate in the mask that one element of `nonzero`'s result is."""
        storage = tensor.untyped_storage()
        shape = self._masks.get(storage._cdata)
        if not shape or tensor.numel() != 1:
            return None
        count = storage.nbytes() // (_PLACE_BYTES * len(shape))
        dim, number = divmod(int(tensor.storage_offset()), count)
        rest = number * math.prod(shape) // count
        return rest // math.prod(shape[dim + 1 :]) % shape[dim]

    def forget(self, key: int) -> None:
        """Forget a released storage, whose address another one may reuse."""
        self._operators.pop(key, None)
        self._masks.pop(key, None)
        self._comparisons.pop(key, None)
        self._counts.pop(key, None)
        self._numbers.discard(key)

    def _count(self, key: int, op: str, output: torch.Tensor, source: torch.Tensor) -> None:
        """Note the true elements of a mask that each element of a sum counts."""
        origin = source.untyped_storage()._cdata
        is_mask = source.dtype is torch.bool or origin in self._numbers
        if op in _SUMS and is_mask:
            self._counts[key] = source.numel() // max(1, output.numel())
        elif op in _COPIES and origin in self._counts:
            self._counts[key] = self._counts[origin]
        elif op == "aten::_to_copy" and is_mask:
            self._numbers.add(key)

    def _question(self, op: str, args: tuple[Any, ...]) -> str:
        if op in _SUMS:
            return f"aten::sum of {args[0].numel()}"
        ask = _COMPARISONS.get(op)
        return op if ask is None else ask(op, self.operator_of(args[0]), args[1])


def _equal(op: str, producer: str, value: Any) -> str:
    return "aten::all" if producer == f"aten::sum of {value}" else op


def _less(op: str, producer: str, value: Any) -> str:
    return op if producer != _RANDOM else LIKELY if value > 0.5 else UNLIKELY


def _greater(op: str, producer: str, value: Any) -> str:
    return op if producer != _RANDOM else UNLIKELY if value > 0.5 else LIKELY


_COMPARISONS: Mapping[str, Callable[[str, str, Any], str]] = {
    "aten::eq.Scalar": _equal,
    "aten::lt.Scalar": _less,
    "aten::gt.Scalar": _greater,
}
