"""In-place accumulation of gradients under a dispatch mode, as without one.

Autograd adds gradients of one tensor into the sum so far if it holds the only reference to that
(`can_accumulate_inplace` in torch/csrc/autograd/input_buffer.cpp), but never under a dispatch mode:
then each addition takes a tensor more. `accumulate` makes these additions in place again. A view,
such as the gradient of a linear layer's weight, is never the sum: its base has its storage, too.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

ADD = torch.ops.aten.add.Tensor
_MAX_FRAMES = 4
"""Python frames below the mode's in a call by autograd's thread: those of torch's dispatch."""
_MAX_USES = 4
"""References to a tensor that autograd's buffer holds alone: one of the buffer, one of the Python
object, two of the call."""
_MAX_STORAGE_USES = 2


def accumulate(args: tuple[Any, ...], keywords: dict[str, Any]) -> torch.Tensor | None:
    """Add in place and return the sum, or return None if torch wouldn't do so without a mode."""
    if keywords or torch.is_grad_enabled() or not _is_engine_call():
        return None
    first: torch.Tensor = args[0]
    second: torch.Tensor = args[1]
    if first.size() != second.size() or first.dtype != second.dtype:
        return None
    return first.add_(second) if _is_sole(first) else None


def _is_engine_call() -> bool:
    if torch._C._current_graph_task_id() == -1:
        return False
    frame, depth = sys._getframe(2), 0
    while frame.f_back is not None and depth <= _MAX_FRAMES:
        frame, depth = frame.f_back, depth + 1
    return depth <= _MAX_FRAMES


def _is_sole(tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage()
    return (
        tensor.is_cuda
        and tensor._use_count() <= _MAX_USES  # type: ignore[attr-defined]
        and torch._C._storage_Use_Count(storage._cdata) <= _MAX_STORAGE_USES
    )
