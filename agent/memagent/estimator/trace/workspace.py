"""Device memory that no tensor of the program shows: what kernels and libraries take for themselves.

Two kinds. *Scratch* is taken from torch's allocator inside one operator and given back at its end: `scratch_bytes`
knows the large ones, and the trace holds them as an allocation that dies at once. *Workspaces* stay, per handle:
`cublas_workspace_bytes`. Everything is in bytes. What is not here, because it is chosen at run time from what is
free: cuDNN's convolution workspaces, Triton's and NCCL's buffers.
"""

from __future__ import annotations

from typing import Any

CUBLAS_WORKSPACE_BYTES = 8_519_680
"""`:4096:2:16:8`, what torch takes for each pair of handle and stream before Hopper: 2 x 4,096 KiB + 8 x 16 KiB."""

CUBLAS_WORKSPACE_HOPPER_BYTES = 32 << 20
"""What torch takes from compute capability 9.0 on (aten/src/ATen/cuda/CublasHandlePool.cpp)."""

CUBLASLT_WORKSPACE_BYTES = 0
"""cuBLASLt shares cuBLAS's workspace since torch 2.7 (unless TORCH_CUBLASLT_UNIFIED_WORKSPACE=0); before, 1 MiB while
a kernel ran."""


def cublas_workspace_bytes(compute_capability: tuple[int, int] | None, setting: str | None = None) -> int:
    """What cuBLAS keeps for one stream. `setting` is the text of CUBLAS_WORKSPACE_CONFIG (":SIZE_KIB:COUNT" pairs),
    which beats the GPU's default.

    An unknown GPU is taken for one before Hopper.
    """
    sizes = [int(word) for word in (setting or "").split(":") if word.isdigit()]
    if len(sizes) >= 2 and len(sizes) % 2 == 0:
        return sum(size * count for size, count in zip(sizes[::2], sizes[1::2], strict=True)) << 10
    if compute_capability is not None and compute_capability[0] >= 9:
        return CUBLAS_WORKSPACE_HOPPER_BYTES
    return CUBLAS_WORKSPACE_BYTES


def scratch_bytes(op: str, args: tuple[Any, ...]) -> int:
    """Bytes that the CUDA kernel of `op` takes and gives back inside the call; 0 where it takes none, or none worth
    counting."""
    if op == "aten::_scaled_dot_product_flash_attention_backward":
        return _flash_backward_bytes(args[1], args[2])
    if op == "aten::_flash_attention_backward":
        return _flash_backward_bytes(args[1].transpose(1, 2), args[2].transpose(1, 2))
    if op == "aten::embedding_dense_backward":
        return _embedding_backward_bytes(args[1])
    return 0


def _flash_backward_bytes(query: Any, key: Any) -> int:
    """mha_bwd of flash attention: fp32 accumulator of dq and the row sums, both with the sequence rounded to 128 and
    the head to 32; with fewer key heads than query heads, also dk and dv for every query head."""
    batch, heads, length, size = query.shape
    rounded = -(-length // 128) * 128
    head = -(-size // 32) * 32
    total = 4 * batch * heads * rounded * (head + 1)
    if key.shape[1] != heads:
        total += 2 * batch * key.shape[2] * heads * size * query.element_size()
    return int(total)


def _embedding_backward_bytes(indices: Any) -> int:
    """Sorted tokens, their places, and the counts (aten/native/cuda/Embedding.cu, above 3,072 tokens)."""
    count = int(indices.numel())
    return 4 * count * int(indices.element_size()) if count > 3072 else 0
