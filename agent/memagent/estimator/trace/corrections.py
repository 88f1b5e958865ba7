"""Where fake tensors say other storages than the kernels make: sizes that only the kernel knows, or that a shape hides.

Each entry of `CORRECTIONS` takes what the fake operator gave and its arguments, and gives what the real one would have
given. They are found by comparing the storages of real and fake runs operator by operator
(tests/agent/estimator/trace/test_corrections.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memagent.estimator.trace.workspace import onednn_lstm_workspace_bytes

_NO_REDUCTION = 0


def corrected(func: Any, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator's output on fake tensors, as its kernel would have made it."""
    replacement = REPLACEMENTS.get(op)
    if replacement is not None:
        return replacement(*args, **kwargs)
    output = func(*args, **kwargs)
    correction = CORRECTIONS.get(op)
    return output if correction is None else correction(output, args)


def _norm_with_true_statistics(
    output: Any, values: torch.Tensor, weight: torch.Tensor | None
) -> Any:
    """On the cpu, statistics of half-precision values with fp32 weights are fp32 (layer_norm_kernel.cpp); fake
    tensors say half."""
    if (
        values.device.type != "cpu"
        or weight is None
        or output[1].dtype is weight.dtype
        or values.dtype is weight.dtype
    ):
        return output
    return output[0], output[1].to(weight.dtype), output[2].to(weight.dtype)


def _contiguous(output: Any, _: tuple[Any, ...] = ()) -> Any:
    """The kernel's result is contiguous where the fake one takes over the input's strides (a later view would copy)."""
    if output[0] is None or output[0].is_contiguous():
        return output
    return (output[0].contiguous(), *output[1:])


def _layer_norm(output: Any, args: tuple[Any, ...]) -> Any:
    return _contiguous(_norm_with_true_statistics(output, args[0], args[2]))


def _in_dtype_of_input(output: Any, args: tuple[Any, ...]) -> Any:
    """The gradient of a half-precision input with fp32 weights is in half precision; fake tensors promote it."""
    if output[0] is None or output[0].dtype is args[1].dtype:
        return output
    return (output[0].to(args[1].dtype), *output[1:])


def _reduced_in_place(output: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    """A loss whose kernel writes a value for each element and then reduces them into the same tensor: the scalar keeps
    the storage of them all (at::mean_out and at::sum_out resize, and never give memory back; aten/native/Loss.cpp).

    What the reduction is stands after input and target, or after the weight.
    """
    reduction = next(
        (item for item in args[2:] if isinstance(item, int) and not isinstance(item, bool)), 1
    )
    if reduction == _NO_REDUCTION or output.numel() != 1:
        return output
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)  # type: ignore[no-untyped-call]
    return torch.empty(shape, dtype=output.dtype, device=output.device).resize_(())


def _lstm_with_workspace(output: Any, args: tuple[Any, ...]) -> Any:
    """What oneDNN keeps of a layer for its backward; fake tensors give it no bytes."""
    values, reverse_and_more = args[0], args[7:]
    hidden, trains = reverse_and_more[3], reverse_and_more[-1]
    if not trains:
        return output
    length, batch, size = values.shape
    kept = onednn_lstm_workspace_bytes(length, batch, size, hidden, values.element_size())
    return (*output[:3], torch.empty(kept, dtype=torch.uint8, device=values.device))


def _grouped_product(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,  # noqa: ARG001  # the operator's name; no kernel takes one
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Products of groups of rows, for experts: fake tensors take bfloat16 only and ask for a driver, the kernels do
    neither. On CUDA rows begin at multiples of 16 bytes (aten/native/GroupedMMUtils.h)."""
    groups = [] if offs is None else [offs.shape[0]]
    if left.dim() == right.dim():
        shape = [*(groups if left.dim() == 2 else left.shape[:1]), left.shape[-2], right.shape[-1]]
    else:
        shape = [left.shape[-2], right.shape[-1]]
    dtype = out_dtype or left.dtype
    step = 16 // dtype.itemsize if left.device.type == "cuda" else 1
    row = -(-shape[-1] // step) * step
    strides = [row, 1] if len(shape) == 2 else [shape[1] * row, row, 1]
    return torch.empty_strided(shape, strides, dtype=dtype, device=left.device)


REPLACEMENTS: dict[str, Callable[..., Any]] = {"aten::_grouped_mm": _grouped_product}
"""Operators whose fake version refuses what the kernel takes."""

CORRECTIONS: dict[str, Callable[[Any, tuple[Any, ...]], Any]] = {
    "aten::native_layer_norm": _layer_norm,
    "aten::native_layer_norm_backward": _contiguous,
    "aten::native_batch_norm": lambda output, args: _norm_with_true_statistics(
        output, args[0], args[1]
    ),
    "aten::native_group_norm": lambda output, args: _norm_with_true_statistics(
        output, args[0], args[1]
    ),
    "aten::native_group_norm_backward": _in_dtype_of_input,
    "aten::mse_loss": _reduced_in_place,
    "aten::smooth_l1_loss": _reduced_in_place,
    "aten::soft_margin_loss": _reduced_in_place,
    "aten::binary_cross_entropy": _reduced_in_place,
    "aten::mkldnn_rnn_layer": _lstm_with_workspace,
}
"""By operator."""
