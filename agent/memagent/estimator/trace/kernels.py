"""CUDA's kernels: which one torch chooses, and the scratch memory inside one.

The choices (attention, RNN, dropout) depend on the driver in torch. Here `install` registers them
in torch's dispatcher for `cuda` tensors and doesn't patch Python names. Names imported earlier,
calls from C++ and recomputations under checkpointing all pass the dispatcher. For CPU tensors that
represent CUDA's, only attention is routed.

Scratch memory is what a kernel allocates from torch and frees before it returns, so that no tensor
of the program shows it. The trace records the large cases of `scratch_bytes` as an allocation
followed by its release. Memory that libraries keep is in `memagent.estimator.devices`. Some amounts
are unknown: what cuDNN tries with `cudnn.benchmark`, and the buffers of Triton and NCCL.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from memagent.estimator.reductions import outer_sum_bytes

_FLASH_DTYPES = (torch.float16, torch.bfloat16)
_EFFICIENT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MAX_FLASH_HEAD = 256
_CUDA_ONLY_KERNELS = ("silu_backward", "mish_backward", "native_channel_shuffle", "_fused_rms_norm")
"""Operators with a CUDA kernel. A build without CUDA decomposes them, with intermediate results."""
_MIN_PRODUCTS = 64
"""Of a sum, from which cuDNN copies to the other layout: between 48 and 147 in recorded nets."""
_HOPPER_MULTIPROCESSORS, _POSITIONS_OF_A_PART = 132, 3500
"""An H200's, and the fewest positions of images that one of them adds up for a convolution's
weights: between 3,136 and 3,584 in recorded nets."""
_FEW_ROWS = 8
"""Up to which bitsandbytes multiplies by a 4-bit weight as it is, on all GPUs."""
_SORT_THRESHOLD = 3072
"""Above this number of tokens, the backward of an embedding sorts them."""


def install(device_rules: str) -> list[torch.library.Library]:
    """Register the kernels in this process. The caller keeps the returned libraries alive."""
    keys = ("AutogradCUDA", "CUDA") if device_rules == "cuda" else ("AutogradCPU", "CPU")
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for key in keys:
        library.impl("scaled_dot_product_attention", attention, key, allow_override=True)  # type: ignore[no-untyped-call]
    if device_rules == "cuda":
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        for name in _CUDA_ONLY_KERNELS:
            if hasattr(torch.ops.aten, name) and not has_kernel(f"aten::{name}", "CUDA"):
                library.impl(name, _never_called, "CUDA")  # type: ignore[no-untyped-call]
    return [library]


def scratch_bytes(op: str, args: tuple[Any, ...], output: Any = None) -> int:
    """Return the bytes that the CUDA kernel of `op` allocates and frees; 0 if few or none."""
    kernel = _SCRATCH.get(op)
    return 0 if kernel is None else kernel(args, output)


def _convolution_bytes(values: Any, weight: Any, output: Any, groups: int) -> int:
    """Return cuDNN's copies of input, weights and output with their channels last.

    Its kernels for tensor cores read this layout: of fp32 values, too, since they may be rounded to
    TF32. Weights of one value (1 x 1), groups of channels, and sums of few products (an image's
    three channels by 3 x 3) run in the given layout. Exact in nearly all convolutions of VGG16,
    ResNet-18, ResNet-50 and R3D on an H200 with cuDNN 9, but for 6 to 16 MiB in small images.
    """
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(values.dim())
    uses_tensor_cores = values.dtype in _FLASH_DTYPES or (
        values.dtype is torch.float32 and torch.backends.cudnn.allow_tf32
    )
    is_copied = layout is not None and not any(
        tensor.is_contiguous(memory_format=layout) for tensor in (values, weight)
    )
    has_kernel = math.prod(weight.shape[2:]) > 1 and math.prod(weight.shape[1:]) >= _MIN_PRODUCTS
    if not (is_copied and uses_tensor_cores and has_kernel and groups == 1):
        return 0
    return sum(item.numel() * item.element_size() for item in (values, weight, output))


def _convolution_backward_bytes(args: tuple[Any, ...], gradient: Any) -> int:
    """Return the copies for one of the gradients; for that of the weights also its partial sums.

    As many as multiprocessors have a share of a tile: exact for the nets above.
    """
    outputs, values, weight = args[:3]
    size = _convolution_bytes(values, weight, outputs, groups=args[9])
    if gradient.dim() == 1 or not size:
        return 0
    if gradient.shape != weight.shape:
        return size
    products = weight.numel() // weight.shape[0]
    columns = -(-products // (64 if weight.shape[1] <= 64 else 128))
    tiles = -(-weight.shape[0] // 128) * columns
    positions = outputs.numel() // outputs.shape[1]
    parts = max(1, _HOPPER_MULTIPROCESSORS // tiles)
    return int(size + 4 * weight.numel() * min(parts, positions // _POSITIONS_OF_A_PART))


def _embedding_backward_bytes(args: tuple[Any, ...], _: Any) -> int:
    """Return the sorted tokens, their positions, and the counts (aten/native/cuda/Embedding.cu)."""
    count = int(args[1].numel())
    return 4 * count * int(args[1].element_size()) if count > _SORT_THRESHOLD else 0


def _sum_bytes(args: tuple[Any, ...], _: Any) -> int:
    values, dims = args[0], list(args[1] or ())
    if dims != list(range(len(dims))) or len(dims) in (0, values.dim()):
        return 0
    columns = math.prod(values.shape[len(dims) :])
    is_plain = values.is_contiguous() and values.numel() > 0
    return outer_sum_bytes(values.numel() // columns, columns) if is_plain else 0


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Run `scaled_dot_product_attention` with the kernel that an Ampere or newer GPU would use.

    Source: aten/native/transformers/cuda/sdp_utils.cpp.
    """
    aten = torch.ops.aten
    if _can_use_flash(query, key, value, attn_mask):
        size = query.shape[-1]
        scale = scale if scale is not None else size**-0.5
        # flash kernels take head sizes in multiples of 8
        if size % 8:
            query, key, value = (
                torch.nn.functional.pad(item, (0, 8 - size % 8)) for item in (query, key, value)
            )
        output = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )[0]
        return output[..., :size]  # type: ignore[no-any-return]
    if _can_use_efficient(query, key, value, enable_gqa):
        bias = _as_bias(attn_mask, query)
        if bias is not None:
            bias = _align_rows(bias, query, key)
        needs_grad = torch.is_grad_enabled() and any(
            item.requires_grad for item in (query, key, value)
        )
        return aten._scaled_dot_product_efficient_attention(  # type: ignore[no-any-return]
            query, key, value, bias, needs_grad, dropout_p, is_causal, scale=scale
        )[0]
    bias = _as_bias(attn_mask, query)
    return aten._scaled_dot_product_attention_math(  # type: ignore[no-any-return]
        query, key, value, bias, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def _never_called(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("fake tensors are answered before the kernel")


def _can_use_flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> bool:
    return (
        torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
        and mask is None
        and query.dtype in _FLASH_DTYPES
        and query.dim() == 4
        and query.shape[-1] == key.shape[-1] == value.shape[-1] <= _MAX_FLASH_HEAD
        and 0 not in query.shape
        and 0 not in key.shape
    )


def _can_use_efficient(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool
) -> bool:
    # The head sizes must be multiples of 16 bytes.
    alignment = 8 if query.dtype in _FLASH_DTYPES else 4
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
        and query.dtype in _EFFICIENT_DTYPES
        and query.dim() == 4
        and query.shape[-1] == key.shape[-1]
        and _has_equal_or_grouped_heads(query.shape[-3], key.shape[-3], enable_gqa)
        and query.shape[-1] % alignment == 0
        and value.shape[-1] % alignment == 0
    )


def _has_equal_or_grouped_heads(queries: int, keys: int, enable_gqa: bool) -> bool:
    """Return whether the efficient kernel takes so many heads: groups since torch 2.14."""
    is_grouped = torch.__version__ >= (2, 14) and queries % keys == 0  # type: ignore[operator]
    return queries == keys or (is_grouped and (enable_gqa or keys == 1))


def _as_bias(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """Convert a boolean mask to an additive one: a new tensor, which backward keeps."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    zero = torch.zeros((), dtype=query.dtype, device=query.device)
    low = torch.full((), float("-inf"), dtype=query.dtype, device=query.device)
    return torch.where(mask, zero, low)


def _align_rows(bias: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Pad rows to multiples of 16 bytes for the efficient kernel and cut them, which copies."""
    last, multiple = bias.shape[-1], 16 // bias.element_size()
    if last % multiple and last > 1:
        bias = torch.nn.functional.pad(bias, (0, multiple - last % multiple))[..., :last]
    return bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _flash_backward_bytes(query: Any, key: Any) -> int:
    """Return the scratch memory of flash attention's `mha_bwd`.

    An fp32 accumulator of dq and the row sums, both with the sequence rounded to 128 and the head
    to 32.
    """
    batch, heads, length, size = query.shape
    rounded = -(-length // 128) * 128
    head = -(-size // 32) * 32
    total = 4 * batch * heads * rounded * (head + 1)
    return int(total) + _grouped_gradient_bytes(query, key)


def _efficient_backward_bytes(query: Any, key: Any) -> int:
    """Return the scratch memory of efficient attention's backward on Ampere.

    Row sums, and dq in fp32 by blocks with 16 bytes each, beyond heads of 128 in half precision dk
    and dv, too (kernel_backward.h, `GradQTempStorage`). fp32 takes no less for the product of the
    output and its gradient before. Measured on the rehearsal device, torch 2.14.
    """
    batch, heads, length, size = query.shape
    is_half = query.dtype in _FLASH_DTYPES
    rows = 128 if is_half and 64 < size <= 128 else 64
    columns = 64 if size <= 64 else 128
    blocks = -(-length // rows) * -(-size // columns)
    total = 4 * length + blocks * (4 * rows * columns + 16)
    if is_half and size > 128:
        total += 2 * 4 * key.shape[2] * size
    if not is_half:
        total = max(total, 8 * length + 4 * length * size)
    return int(batch * heads * total) + _grouped_gradient_bytes(query, key)


def _grouped_gradient_bytes(query: Any, key: Any) -> int:
    """Return the bytes of dk and dv for every query head, if there are fewer key heads."""
    batch, heads, _, size = query.shape
    if key.shape[1] == heads:
        return 0
    return int(2 * batch * key.shape[2] * heads * size * query.element_size())


def _four_bit_product_bytes(args: tuple[Any, ...], _: Any) -> int:
    """Return the dequantised weight and scales of bitsandbytes' product, which few rows don't need.

    Source: bitsandbytes/backends/cuda/ops.py, `gemm_4bit`.
    """
    values, (rows, columns) = args[0], args[2]
    if values.numel() // columns <= _FEW_ROWS:
        return 0
    weight = rows * columns * values.element_size()
    has_double_scales = len(args) > 7 and args[7] is not None
    return int(weight + (8 * rows * columns // args[4] if has_double_scales else 0))


def _eight_bit_rows_bytes(args: tuple[Any, ...], _: Any) -> int:
    """Return the magnitudes and the mask of outliers, which are looked for if there's a threshold.

    Source: bitsandbytes/backends/cuda/ops.py, `int8_vectorwise_quant`.
    """
    values = args[0]
    has_threshold = len(args) > 1 and args[1] > 0
    return int(values.numel() * (values.element_size() + 1)) if has_threshold else 0


def _eight_bit_product_bytes(_: tuple[Any, ...], output: Any) -> int:
    """Return the int32 product and its fp16 copy, from which the output is cast.

    Source: bitsandbytes/backends/default/ops.py, `int8_scaled_mm`.
    """
    product = output[0]
    is_half = product.dtype == torch.float16  # then the copy is the output
    return int(product.numel() * (4 if is_half else 6))


_SCRATCH: dict[str, Callable[[tuple[Any, ...], Any], int]] = {
    "aten::convolution": lambda args, output: _convolution_bytes(
        args[0], args[1], output, groups=args[8]
    ),
    "aten::convolution_backward": _convolution_backward_bytes,
    "aten::_scaled_dot_product_flash_attention_backward": lambda args, _: _flash_backward_bytes(
        args[1], args[2]
    ),
    "aten::_flash_attention_backward": lambda args, _: _flash_backward_bytes(
        args[1].transpose(1, 2), args[2].transpose(1, 2)
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": lambda args, _: (
        _efficient_backward_bytes(args[1], args[2])
    ),
    "bitsandbytes::gemm_4bit": _four_bit_product_bytes,
    "bitsandbytes::int8_vectorwise_quant": _eight_bit_rows_bytes,
    "bitsandbytes::int8_mixed_scaled_mm": _eight_bit_product_bytes,
    "aten::embedding_dense_backward": _embedding_backward_bytes,
    "aten::sum.dim_IntList": _sum_bytes,
}
