"""CUDA's kernels: which one torch chooses, and the scratch memory inside one.

The choices (attention, RNN, dropout) depend on the driver in torch. Here `install` registers them
in torch's dispatcher for `cuda` tensors and doesn't patch Python names. Names imported earlier,
calls from C++ and recomputations under checkpointing all pass the dispatcher. For CPU tensors that
represent CUDA's, only attention is routed.

Scratch memory is what a kernel allocates from torch and frees before it returns, so that no tensor
of the program shows it. The trace records the large cases of `scratch_bytes` as an allocation
followed by its release. Memory that libraries keep is in `memagent.estimator.devices`. Some amounts
are unknown, because they depend on the free memory at run time: cuDNN's convolution workspaces, and
the buffers of Triton and NCCL.
"""

from __future__ import annotations

from typing import Any

import torch

_FLASH_DTYPES = (torch.float16, torch.bfloat16)
_EFFICIENT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MAX_FLASH_HEAD = 256
_CUDA_ONLY_KERNELS = ("silu_backward", "mish_backward", "native_channel_shuffle", "_fused_rms_norm")
"""Operators with a CUDA kernel. A build without CUDA decomposes them, with intermediate results."""
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


def scratch_bytes(op: str, args: tuple[Any, ...]) -> int:
    """Return the bytes that the CUDA kernel of `op` allocates and frees; 0 if few or none."""
    if op == "aten::_scaled_dot_product_flash_attention_backward":
        return _flash_backward_bytes(args[1], args[2])
    if op == "aten::_flash_attention_backward":
        return _flash_backward_bytes(args[1].transpose(1, 2), args[2].transpose(1, 2))
    if op == "aten::embedding_dense_backward":
        # Sorted tokens, their positions, and the counts (aten/native/cuda/Embedding.cu).
        tokens = args[1]
        count = int(tokens.numel())
        return 4 * count * int(tokens.element_size()) if count > _SORT_THRESHOLD else 0
    return 0


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
        and query.shape[-3] == key.shape[-3]
        and not (enable_gqa and query.shape[-3] != key.shape[-3])
        and query.shape[-1] % alignment == 0
        and value.shape[-1] % alignment == 0
    )


def _as_bias(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """Convert a boolean mask to an additive one: a new tensor, which backward keeps."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    zero = torch.zeros((), dtype=query.dtype, device=query.device)
    low = torch.full((), float("-inf"), dtype=query.dtype, device=query.device)
    return torch.where(mask.logical_not(), low, zero)


def _align_rows(bias: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Pad rows to multiples of 16 bytes for the efficient kernel and cut them, which copies."""
    last, multiple = bias.shape[-1], 16 // bias.element_size()
    if last % multiple and last > 1:
        bias = torch.nn.functional.pad(bias, (0, multiple - last % multiple))[..., :last]
    return bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _flash_backward_bytes(query: Any, key: Any) -> int:
    """Return the scratch memory of flash attention's `mha_bwd`.

    An fp32 accumulator of dq and the row sums, both with the sequence rounded to 128 and the head
    to 32. With fewer key heads than query heads, also dk and dv for every query head.
    """
    batch, heads, length, size = query.shape
    rounded = -(-length // 128) * 128
    head = -(-size // 32) * 32
    total = 4 * batch * heads * rounded * (head + 1)
    if key.shape[1] != heads:
        total += 2 * batch * key.shape[2] * heads * size * query.element_size()
    return int(total)
