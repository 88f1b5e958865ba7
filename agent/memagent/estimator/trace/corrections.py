"""Corrections of fake outputs whose storage differs from the one that the real kernel allocates.

Each entry of `CORRECTIONS` takes the output of the fake operator and its arguments, and returns the
output of the real kernel. They were found by comparing the storages of real and fake runs, operator
by operator (tests/agent/estimator/trace/test_corrections.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_NO_REDUCTION = 0
_PAGE_BYTES = 4096
_DROPOUT = 5
"""The argument of efficient attention."""


def run_corrected(func: Any, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on fake tensors and return the output that its kernel would allocate."""
    replacement = REPLACEMENTS.get(op)
    if replacement is not None:
        return replacement(*args, **kwargs)
    output = func(*args, **kwargs)
    correction = CORRECTIONS.get(op)
    return output if correction is None else correction(output, args)


def onednn_lstm_workspace_bytes(
    length: int, batch: int, inputs: int, hidden: int, value_bytes: int
) -> int:
    """Return the bytes that oneDNN keeps of one direction of an LSTM layer for its backward.

    It keeps gates, hidden and cell states of every step and room for their gradients, each from
    the start of a page (src/cpu/rnn/rnn_utils.cpp, `set_offsets`). Gradients are always fp32.
    """
    states = 2 * (length + 1) * batch  # both borders of the layer, and the initial step
    widest = max(inputs, hidden)
    parts = (
        length * batch * _leading_dimension(4 * hidden, value_bytes) * value_bytes,
        length * batch * _leading_dimension(hidden, value_bytes) * value_bytes,
        states * _leading_dimension(widest, value_bytes) * value_bytes,
        states * hidden * value_bytes,
        states * _leading_dimension(widest, 4) * 4,
        states * _leading_dimension(widest, 4) * 4,
        states * hidden * 4,
    )
    return sum(-(-part // _PAGE_BYTES) * _PAGE_BYTES for part in parts)


def _leading_dimension(values: int, value_bytes: int) -> int:
    """Pad to 64 bytes, and past multiples of 256 values, which alias in the cache.

    Source: oneDNN's `get_good_ld`.
    """
    step = 64 // value_bytes
    rounded = -(-values // step) * step
    return rounded + step if rounded % 256 == 0 else rounded


def _norm_statistics(output: Any, values: torch.Tensor, weight: torch.Tensor | None) -> Any:
    """Make the CPU statistics of half-precision values with fp32 weights fp32.

    Fake tensors return half precision; the kernel (layer_norm_kernel.cpp) returns fp32.
    """
    if (
        values.device.type != "cpu"
        or weight is None
        or output[1].dtype is weight.dtype
        or values.dtype is weight.dtype
    ):
        return output
    return output[0], output[1].to(weight.dtype), output[2].to(weight.dtype)


def _contiguous(output: Any, _: tuple[Any, ...] = ()) -> Any:
    """Make the result contiguous. The fake one keeps the input's strides, so a view would copy."""
    if output[0] is None or output[0].is_contiguous():
        return output
    return (output[0].contiguous(), *output[1:])


def _layer_norm(output: Any, args: tuple[Any, ...]) -> Any:
    return _contiguous(_norm_statistics(output, args[0], args[2]))


def _norm(output: Any, args: tuple[Any, ...]) -> Any:
    return _norm_statistics(output, args[0], args[1])


def _input_dtype(output: Any, args: tuple[Any, ...]) -> Any:
    """Return the gradient of a half-precision input in half precision; fake tensors promote it."""
    if output[0] is None or output[0].dtype is args[1].dtype:
        return output
    return (output[0].to(args[1].dtype), *output[1:])


def _reduced_loss(output: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor:
    """Keep the storage of all elements under a reduced loss.

    The kernel writes a value for each element and reduces them into the same tensor. That resizes
    the tensor and never releases memory (at::mean_out and at::sum_out in aten/native/Loss.cpp). The
    reduction is the argument after input and target, or after the weight.
    """
    reduction = next(
        (item for item in args[2:] if isinstance(item, int) and not isinstance(item, bool)), 1
    )
    if reduction == _NO_REDUCTION or output.numel() != 1:
        return output
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)  # type: ignore[no-untyped-call]
    # resize_ keeps the storage, as the kernel does
    return torch.empty(shape, dtype=output.dtype, device=output.device).resize_(())


def _lstm_workspace(output: Any, args: tuple[Any, ...]) -> Any:
    """Add oneDNN's workspace of a layer; fake tensors give it no bytes."""
    values, hidden, trains = args[0], args[10], args[-1]
    if not trains:
        return output
    length, batch, size = values.shape
    workspace = onednn_lstm_workspace_bytes(length, batch, size, hidden, values.element_size())
    return (*output[:3], torch.empty(workspace, dtype=torch.uint8, device=values.device))


def _seed_on_host(output: Any, args: tuple[Any, ...]) -> Any:
    """Keep the seed and offset of a dropout on the host, as the kernel does outside of a graph.

    Source: `_efficient_attention_forward` in aten/native/transformers/cuda/attention.cu.
    """
    has_dropout = len(args) > _DROPOUT and args[_DROPOUT]
    if not has_dropout or output[2].device.type == "cpu":
        return output
    return (*output[:2], *(torch.empty((), dtype=torch.int64, device="cpu") for _ in range(2)))


def _grouped_mm(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,  # noqa: ARG001  # in the operator's schema; no kernel has one
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Allocate the products of groups of rows, for experts.

    Fake tensors take bfloat16 only and ask for a driver; the kernels do neither. On CUDA rows start
    at multiples of 16 bytes (aten/native/GroupedMMUtils.h).
    """
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


def _gru_cell(
    gates: torch.Tensor, _gates: torch.Tensor, state: torch.Tensor, *_biases: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate the new state and five values of each unit for backward (native/cuda/RNN.cu)."""
    rows, hidden = state.shape
    return torch.empty_like(state), gates.new_empty(rows, 5 * hidden)


def _gru_cell_backward(
    gradient: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[Any, ...]:
    rows, hidden = gradient.shape
    gates = [workspace.new_empty(rows, 3 * hidden) for _ in range(2)]
    biases = [workspace.new_empty(3 * hidden) if has_bias else None for _ in range(2)]
    return (*gates, torch.empty_like(gradient), *biases)


REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "aten::_grouped_mm": _grouped_mm,
    "aten::_thnn_fused_gru_cell": _gru_cell,
    "aten::_thnn_fused_gru_cell_backward": _gru_cell_backward,
}
"""Operators whose fake version refuses inputs that the kernel takes."""

CORRECTIONS: dict[str, Callable[[Any, tuple[Any, ...]], Any]] = {
    "aten::native_layer_norm": _layer_norm,
    "aten::native_layer_norm_backward": _contiguous,
    "aten::native_batch_norm": _norm,
    "aten::native_group_norm": _norm,
    "aten::native_group_norm_backward": _input_dtype,
    "aten::mse_loss": _reduced_loss,
    "aten::smooth_l1_loss": _reduced_loss,
    "aten::soft_margin_loss": _reduced_loss,
    "aten::binary_cross_entropy": _reduced_loss,
    "aten::mkldnn_rnn_layer": _lstm_workspace,
    "aten::_scaled_dot_product_efficient_attention": _seed_on_host,
}
"""Corrections by operator."""
