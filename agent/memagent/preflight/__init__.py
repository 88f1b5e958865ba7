"""Tries in advance what no series of samples can predict: the first evaluation and checkpoint.

1. The request is validated first (`request`): only that raises errors.
2. Each task is tried once, as the script would do it, and the highest reading above what was held
   is taken (`runner`). An evaluation runs without gradients in eval mode.
3. Modes, buffers and random generators are restored afterwards (`tasks`). Memory that a task took
   is released.
4. The optimizer's state that is still to come is added, by the estimator's rule; the result says
   if all of it fits (`result`). A task that runs out of memory is part of the result. One that
   fails otherwise is reported, and says nothing about memory.
5. Models whose parameters are sharded over ranks are not tried: a rank that failed in the middle
   would leave the others waiting.
"""

from memagent.preflight.request import PreflightRequest, parse_preflight
from memagent.preflight.result import DeviceNeed, Preflight, TaskResult

__all__ = ["DeviceNeed", "Preflight", "PreflightRequest", "TaskResult", "parse_preflight"]
