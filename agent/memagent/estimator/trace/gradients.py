"""Sums of gradients: what autograd does in training, and does not do while anything looks on.

A tensor with several uses gets several gradients, and autograd adds them up. It adds in place where it alone owns the
sum so far, but never while a dispatch mode is on or on fake tensors (`can_accumulate_inplace` in
torch/csrc/autograd/input_buffer.cpp), which costs one copy more than the training does. `GradientSums` knows such an
addition by who else holds its first operand, and lets the recorder make it in place.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

Owners = tuple[int, int, int]
"""References to a tensor's Python object, to the tensor, and to its storage, as an operator's handler sees them."""


class GradientSums:
    """Tells autograd's own additions, where nobody else holds the sum so far, from all others.

    Who holds an operand on its way into a handler differs between versions of torch: it is looked up once, in a
    backward that is known, when the first of these is made, which must not be inside a handler. Should that one not
    show an addition, nothing is ever taken for one.
    """

    _alone: Owners | None = None
    _is_known = False

    def __init__(self) -> None:
        if not GradientSums._is_known:
            GradientSums._alone, GradientSums._is_known = _owners_in_a_known_sum(), True

    def is_in_place(self, args: tuple[Any, ...]) -> bool:
        """Whether autograd would write this sum into its first operand. To be asked by a dispatch handler, with the
        arguments as they came."""
        if len(args) != 2 or not isinstance(args[1], torch.Tensor) or torch.is_grad_enabled():
            return False
        if _owners(args) != self._alone:
            return False
        total, more = args
        return total.shape == more.shape and total.dtype is more.dtype and _is_dense(total)


def _owners(args: tuple[Any, ...]) -> Owners:
    return (
        sys.getrefcount(args[0]),
        args[0]._use_count(),
        torch._C._storage_Use_Count(args[0].untyped_storage()._cdata),
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Each element has a place of its own, and there are no gaps."""
    if tensor.is_contiguous():
        return True
    strides = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, size in strides:
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


class _Witness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes note of the owners in additions, with the same calls between as in the recorder's handler."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Owners] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as the recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.add.Tensor:
            self._look(args)
        return func(*args, **kwargs)

    def _look(self, args: tuple[Any, ...]) -> None:
        self.seen.append(_owners(args))


def _owners_in_a_known_sum() -> Owners | None:
    """The owners when the gradients of a tensor with two uses are added up: it is the only addition in that backward."""
    with _disable_current_modes(), torch.enable_grad():
        hidden = torch.ones(2, requires_grad=True) * 1.0
        output = (hidden * 2.0).sum() * (hidden * 3.0).sum()
        witness = _Witness()
        with witness:
            output.backward()  # type: ignore[no-untyped-call]
    return witness.seen[0] if len(witness.seen) == 1 else None
