"""Device memory that no tensor of the program shows: what kernels take from torch's allocator inside one operator and give back at its end.

`scratch_bytes` knows the large ones, and the trace holds them as an allocation that dies at once. Everything is in bytes. What libraries
keep for good is in `memagent.estimator.devices`. What is not known, because it is chosen at run time from what is free: cuDNN's
convolution workspaces, Triton's and NCCL's buffers.
"""

from __future__ import annotations

from typing import Any


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


def onednn_lstm_workspace_bytes(
    length: int, batch: int, inputs: int, hidden: int, value_bytes: int
) -> int:
    """What oneDNN keeps of one direction of one LSTM layer on the CPU for its backward: gates, hidden and cell states of
    every step, and room for their gradients, each from a page's beginning (src/cpu/rnn/rnn_utils.cpp, `set_offsets`).

    Leading dimensions are padded by `_padded`; gradients are fp32 whatever the values are.
    """
    states = 2 * (length + 1) * batch  # of two layers' borders, and of the step before the first
    widest = max(inputs, hidden)
    parts = (
        length * batch * _padded(4 * hidden, value_bytes) * value_bytes,
        length * batch * _padded(hidden, value_bytes) * value_bytes,
        states * _padded(widest, value_bytes) * value_bytes,
        states * hidden * value_bytes,
        states * _padded(widest, 4) * 4,
        states * _padded(widest, 4) * 4,
        states * hidden * 4,
    )
    return sum(-(-part // _PAGE_BYTES) * _PAGE_BYTES for part in parts)


_PAGE_BYTES = 4096


def _padded(values: int, value_bytes: int) -> int:
    """oneDNN's `get_good_ld`: multiples of 64 bytes, but none of 256 values, which would alias in the cache."""
    step = 64 // value_bytes
    rounded = -(-values // step) * step
    return rounded + step if rounded % 256 == 0 else rounded


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
