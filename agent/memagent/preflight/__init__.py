"""Tries, before it comes by itself, what no series of samples can show: the first evaluation and the first checkpoint.

1. What was asked for is checked first (`request`): that is the only place where an error is raised.
2. Each thing is tried once, as the script would do it, and the highest reading over what is held is taken (`trial`). An evaluation runs
   without gradients in eval mode.
3. Whatever a trial could change is put back: modes, buffers, random generators (`untouched`). Memory that it took is given back.
4. The optimizer's state that is still to come is added, by the estimator's rule; the answer says whether all of it fits (`answer`).
   A trial that runs out of memory is part of the answer. One that fails otherwise is told, and says nothing of memory.
5. Not tried are models whose parameters are sharded over ranks: a rank that fails in the middle would leave the others waiting.
"""

from memagent.preflight.request import Request, checked, requested
from memagent.preflight.result import Need, Preflight, TaskResult
from memagent.preflight.runner import try_out

__all__ = ["Need", "Preflight", "Request", "TaskResult", "checked", "requested", "try_out"]
