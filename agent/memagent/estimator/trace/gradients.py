"""Sums of gradients: autograd adds them in place in training, but not under a dispatch mode.

A tensor with several uses gets several gradients, and autograd adds them up. It adds in place if
nothing else refers to the sum so far. While a dispatch mode is active, or on fake tensors, it never
does (`can_accumulate_inplace` in torch/csrc/autograd/input_buffer.cpp). That would cost one copy
more than the training. So `GradientSums` recognizes such an addition by the reference counts of its
first operand, and the recorder runs it in place.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

ReferenceCounts = tuple[int, int, int]
"""References to a tensor's Python object, to the tensor, and to its storage."""


class GradientSums:
    """Distinguishes autograd's own additions from all others.

    Versions of torch differ in who refers to an operand on its way into a handler. The first
    instance therefore reads the counts once, in a backward with a known addition. Create it outside
    of handlers. If that backward shows no addition, `is_in_place` is always False.
    """

    _sum_counts: ReferenceCounts | None = None
    _is_calibrated = False

    def __init__(self) -> None:
        if not GradientSums._is_calibrated:
            GradientSums._sum_counts = _counts_of_known_sum()
            GradientSums._is_calibrated = True

    def is_in_place(self, args: tuple[Any, ...]) -> bool:
        """Return whether autograd would write this sum into its first operand.

        Call it directly from a dispatch handler, with the arguments as received: each additional
        reference to an operand changes the counts.
        """
        # autograd adds without alpha, and outside of any recorded graph
        if len(args) != 2 or not isinstance(args[1], torch.Tensor) or torch.is_grad_enabled():
            return False
        if _reference_counts(args) != self._sum_counts:
            return False
        total, addend = args
        return (
            total.shape == addend.shape
            and total.dtype is addend.dtype
            and _is_non_overlapping_and_dense(total)
        )


def _reference_counts(args: tuple[Any, ...]) -> ReferenceCounts:
    return (
        sys.getrefcount(args[0]),
        args[0]._use_count(),
        torch._C._storage_Use_Count(args[0].untyped_storage()._cdata),
    )


def _is_non_overlapping_and_dense(tensor: torch.Tensor) -> bool:
    if tensor.is_contiguous():
        return True
    strides = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, size in strides:
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


class _CountReader(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reads the counts in additions, through the same calls as the recorder's handler."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: list[ReferenceCounts] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in the recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.add.Tensor:
            self._read(args)
        return func(*args, **kwargs)

    def _read(self, args: tuple[Any, ...]) -> None:
        self.counts.append(_reference_counts(args))


def _counts_of_known_sum() -> ReferenceCounts | None:
    """Return the counts when the two gradients of a tensor are added up.

    That is the only addition in this backward.
    """
    with _disable_current_modes(), torch.enable_grad():
        hidden = torch.ones(2, requires_grad=True) * 1.0
        output = (hidden * 2.0).sum() * (hidden * 3.0).sum()
        reader = _CountReader()
        with reader:
            output.backward()  # type: ignore[no-untyped-call]
    return reader.counts[0] if len(reader.counts) == 1 else None
