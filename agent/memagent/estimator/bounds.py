"""The largest sizes of a training step: beyond them, a number is a slip of the keyboard."""

from __future__ import annotations

from memagent.errors import EstimateError
from memagent.units import DAY_S

SIZE_LIMITS = {
    "batch": 1 << 24,
    "sequence": 1 << 24,
    "target_sequence": 1 << 24,
    "image_size": 1 << 16,
    "accumulation": 1 << 20,
    "checkpoint_every": 1 << 10,
    "loss_chunks": 1 << 20,
    "lora_rank": 1 << 14,
    "ranks": 1 << 17,
    "data": 1 << 17,
    "tensor": 1 << 10,
    "pipeline": 1 << 10,
}
"""Above what has been published: contexts of 10 million tokens, matrices 16,384 wide (Llama 3.1
405B, which a rank beyond would not narrow), its 126 layers, trainings on 100,000 GPUs."""
INPUT_LIMIT = 1 << 40
"""Values of one input: 4 TiB of fp32, more than any host of one GPU holds."""
MEMORY_LIMIT = 1 << 42
"""Bytes of one GPU: ten times the largest card's."""
TIME_LIMIT_S = 7 * DAY_S


def check_size(name: str, size: int | None, *, label: str = "", unit: str = "") -> None:
    """Raise EstimateError, with `label` for the name, if `size` is below 1 or beyond its limit."""
    label, limit = label or name, SIZE_LIMITS.get(name)
    if size is None:
        return
    if size < 1:
        raise EstimateError(f"{label} is {size}{unit}: give 1 or more")
    if limit is not None and size > limit:
        raise EstimateError(f"{label} is {size}{unit}: give at most {limit}")
