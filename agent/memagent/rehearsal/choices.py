"""Choices of a router among equal scores, on a device whose kernels compute nothing.

Scores that come from large tensors are zeros, so that every token would choose the same experts and
the others would get no gradients. A trained router spreads tokens evenly: so each row begins to
choose where the row before it has ended. Scores that differ are chosen as torch does.
"""

from __future__ import annotations

from typing import Any

import torch

from memagent.rehearsal.host_views import host_view

_DIMS: dict[str, tuple[int, int | None]] = {"topk": (2, -1), "max": (1, None), "argmax": (1, None)}
"""The argument with the dimension, and its default; None is the whole tensor."""
MAX_CHOICES = 1 << 24
"""Places of one operator that are written: 128 MiB of them."""


def spread_choices(operator: str, args: tuple[Any, ...], output: Any, *, has_scores: bool) -> None:
    """Write evenly spread places into the indices that an operator returned.

    `has_scores` says whether the scores in `args[0]` have their values; they are zeros otherwise.
    Operators that choose nothing along a dimension are left alone.
    """
    position, default = _DIMS.get(operator, (0, None))
    dim = args[position] if 0 < position < len(args) else default
    if not isinstance(dim, int) or not args[0].is_floating_point() or not args[0].dim():
        return
    chosen = output if operator == "argmax" else output[1]
    if not 0 < chosen.numel() <= MAX_CHOICES:
        return
    places = host_view(chosen)
    places = places.unsqueeze(dim) if places.dim() < args[0].dim() else places
    rows = places.movedim(dim, -1)
    scores = host_view(args[0]).movedim(dim, -1)
    spread = _spread(rows.shape, scores) if has_scores else _turns(rows.shape, scores.shape[-1])
    rows.copy_(spread.view(rows.shape))


def _turns(shape: torch.Size, classes: int, length: int | None = None) -> torch.Tensor:
    """Return for each row of places the next `length` classes, from where the last row ended."""
    count = shape[-1]
    starts = torch.arange(shape.numel() // count) * count
    return (starts[:, None] + torch.arange(count if length is None else length)) % classes


def _spread(shape: torch.Size, scores: torch.Tensor) -> torch.Tensor:
    """Return the places of the best scores; among equal ones, those whose turn it is."""
    classes = scores.shape[-1]
    order = _turns(shape, classes, classes)
    turned = scores.reshape(-1, classes).gather(1, order)
    best = turned.sort(dim=1, descending=True, stable=True).indices
    return order.gather(1, best[:, : shape[-1]])
