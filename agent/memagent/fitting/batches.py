"""A batch in parts, whose gradients add up to those of the whole.

A loss that is a mean over samples or labels is weighted by how many of them a part has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

IGNORED_LABEL = -100
"""The default of `ignore_index` (torch.nn.functional.cross_entropy)."""


def batch_size(batch: Any) -> int | None:
    """Return the first dimension of the first tensor; None if there is none."""
    if hasattr(batch, "shape"):
        return int(batch.shape[0]) if len(batch.shape) else None
    values = batch.values() if isinstance(batch, Mapping) else batch
    if not isinstance(batch, Mapping | tuple | list):
        return None
    return next((size for size in map(batch_size, values) if size is not None), None)


def divided(batch: Any, parts: int, size: int) -> list[Any]:
    """Return `parts` batches, as equal as possible; what has not `size` samples goes into each."""
    if hasattr(batch, "shape"):
        is_batch = len(batch.shape) > 0 and batch.shape[0] == size
        return list(batch.tensor_split(parts)) if is_batch else [batch] * parts
    if isinstance(batch, Mapping):
        keys = list(batch)
        columns = [divided(batch[key], parts, size) for key in keys]
        return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(batch, tuple | list):
        columns = [divided(item, parts, size) for item in batch]
        return [type(batch)(row) for row in zip(*columns, strict=True)]
    return [batch] * parts


def weights_of(batches: Sequence[Any], *, is_shifted: bool) -> list[float]:
    """Return the share of each part in the whole: of the labels that count, else of the samples.

    is_shifted: the loss predicts the next token, so the first label of a sequence doesn't count.
    """
    counts = [_count(batch, is_shifted) for batch in batches]
    total = sum(counts)
    return [count / total if total else 1 / len(counts) for count in counts]


def _count(batch: Any, is_shifted: bool) -> int:
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if labels is None or labels.dim() < 2 or labels.is_floating_point():
        return batch_size(batch) or 0
    counted = labels[:, 1:] if is_shifted else labels
    return int((counted != IGNORED_LABEL).sum())
