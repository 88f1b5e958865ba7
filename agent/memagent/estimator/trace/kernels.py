"""CUDA's choices of kernels, where torch would ask the driver: which attention, which RNN, what dropout keeps.

They are put in torch's dispatcher for tensors on `cuda` (`Kernels.install`), not patched into Python names: a name
imported before, a call from C++ and a recomputation under checkpointing all come by there. For cpu tensors that stand
in for cuda's, only attention is routed.
"""

from __future__ import annotations

from typing import Any

import torch

_FLASH_TYPES = (torch.float16, torch.bfloat16)
_EFFICIENT_TYPES = (torch.float16, torch.bfloat16, torch.float32)
_LARGEST_FLASH_HEAD = 256


def install(device_rules: str) -> list[Any]:
    """Register the kernels in this process. The libraries returned must be kept alive."""
    keys = ("AutogradCUDA", "CUDA") if device_rules == "cuda" else ("AutogradCPU", "CPU")
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for key in keys:
        library.impl("scaled_dot_product_attention", attention, key, allow_override=True)  # type: ignore[no-untyped-call]
    if device_rules == "cuda":
        for name in _WITH_CUDA_KERNELS:
            if _lacks_cuda_kernel(name):
                library.impl(name, _never_called, "CUDA")  # type: ignore[no-untyped-call]
    return [library]


_WITH_CUDA_KERNELS = ("silu_backward", "mish_backward", "native_channel_shuffle", "_fused_rms_norm")
"""Operators that CUDA has a kernel for, but that a build without CUDA takes apart into smaller ones, with
intermediate results."""


def _lacks_cuda_kernel(name: str) -> bool:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return hasattr(torch.ops.aten, name) and not has(f"aten::{name}", "CUDA")


def _never_called(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("fake tensors are answered before the kernel")


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
    """`scaled_dot_product_attention` by the rules of aten/native/transformers/cuda/sdp_utils.cpp, for Ampere and
    newer."""
    aten = torch.ops.aten
    if _flash_takes(query, key, value, attn_mask):
        size = query.shape[-1]
        scale = scale if scale is not None else size**-0.5
        if size % 8:
            query, key, value = (
                torch.nn.functional.pad(item, (0, 8 - size % 8)) for item in (query, key, value)
            )
        output = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )[0]
        return output[..., :size]  # type: ignore[no-any-return]
    if _efficient_takes(query, key, value, enable_gqa):
        mask = _as_bias(attn_mask, query)
        if mask is not None:
            mask = _aligned(mask, query, key)
        needs_grad = torch.is_grad_enabled() and any(
            item.requires_grad for item in (query, key, value)
        )
        return aten._scaled_dot_product_efficient_attention(  # type: ignore[no-any-return]
            query, key, value, mask, needs_grad, dropout_p, is_causal, scale=scale
        )[0]
    mask = _as_bias(attn_mask, query)
    return aten._scaled_dot_product_attention_math(  # type: ignore[no-any-return]
        query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def _flash_takes(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> bool:
    return (
        torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
        and mask is None
        and query.dtype in _FLASH_TYPES
        and query.dim() == 4
        and query.shape[-1] == key.shape[-1] == value.shape[-1] <= _LARGEST_FLASH_HEAD
        and 0 not in query.shape
        and 0 not in key.shape
    )


def _efficient_takes(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool
) -> bool:
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
        and query.dtype in _EFFICIENT_TYPES
        and query.dim() == 4
        and query.shape[-1] == key.shape[-1]
        and query.shape[-3] == key.shape[-3]
        and not (enable_gqa and query.shape[-3] != key.shape[-3])
        and query.shape[-1] % _alignment(query) == 0
        and value.shape[-1] % _alignment(query) == 0
    )


def _alignment(query: torch.Tensor) -> int:
    """Elements that a head must be a multiple of for the efficient kernel."""
    return 8 if query.dtype in _FLASH_TYPES else 4


def _as_bias(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """Boolean masks are turned into additive ones of the query's dtype: a tensor of its own, kept for backward."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    zero = torch.zeros((), dtype=query.dtype, device=query.device)
    low = torch.full((), float("-inf"), dtype=query.dtype, device=query.device)
    return torch.where(mask.logical_not(), low, zero)


def _aligned(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The efficient kernel wants rows of the bias to start at multiples of 16 bytes: others are padded and cut back,
    which copies them."""
    last, multiple = mask.shape[-1], 16 // mask.element_size()
    if last % multiple and last > 1:
        mask = torch.nn.functional.pad(mask, (0, multiple - last % multiple))[..., :last]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
