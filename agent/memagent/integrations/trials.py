"""Trials of a hyperparameter search: what one needs before it allocates, and its out-of-memory.

`memagent.integrations.optuna` and `memagent.integrations.ray_tune` build on it; with another
framework, catch `TrialTooLargeError`.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from memagent.errors import MemagentError
from memagent.estimator.api import estimate
from memagent.estimator.estimate import Estimate
from memagent.fitting.api import memory_here
from memagent.hooks.exit import error_chain, status_of
from memagent.lifecycle.registry import RegisteredRun, newest_run_of_thread

GIB = 2**30


class TrialTooLargeError(MemagentError):
    """A trial's training step won't fit. `values` says what it needs; see `trial_values`."""

    def __init__(self, text: str, values: dict[str, Any]) -> None:
        super().__init__(text, values)  # both, so that it can be pickled
        self.values = values

    def __str__(self) -> str:
        return str(self.args[0])


def check_trial(model: Any, inputs: Any, **options: Any) -> Estimate:
    """Estimate a trial's training step before anything of it runs.

    `model`, `inputs` and `options` are those of `memagent.estimate`. Without `gpu` and
    `limit_bytes` the limit is the memory of the GPU here. Raises TrialTooLargeError if the step
    won't fit; a tight one may run.
    """
    if options.get("gpu") is None and options.get("limit_bytes") is None:
        options["limit_bytes"] = memory_here("limit_bytes")
    result = estimate(model, inputs, **options)
    if result.outcome == "won't fit":
        raise TrialTooLargeError(f"the trial {result.verdict()}", trial_values(result))
    return result


def trial_values(result: Estimate) -> dict[str, Any]:
    """Return what a study stores of an estimate: verdict, bytes needed, and the limit's."""
    return {
        "memagent_verdict": result.outcome,
        "memagent_needed_bytes": result.needed_bytes,
        "memagent_limit_bytes": result.limit_bytes,
    }


def excess_gib(values: Mapping[str, Any]) -> float:
    """Return how far a trial's need exceeds its limit, in GiB: positive if it doesn't fit.

    A trial that ran out of memory exceeds it, whatever was estimated. Nothing is known, so it's 0,
    of one that was never checked or cannot be traced.
    """
    needed, limit = values.get("memagent_needed_bytes"), values.get("memagent_limit_bytes")
    excess = (needed - limit) / GIB if needed is not None and limit is not None else 0.0
    verdict = values.get("memagent_verdict")
    if verdict == "out of memory":
        return max(excess, sys.float_info.epsilon)
    if verdict == "unknown":
        return 0.0
    return excess if verdict == "won't fit" else min(excess, 0.0)


def run_values(before: RegisteredRun | None) -> dict[str, Any]:
    """Return id and peak of the run that this thread has started since `before`, if any."""
    run = _run_since(before)
    if run is None:
        return {}
    peaks: list[dict[str, Any]] = list(run.report()["peaks"].values())
    return {
        "memagent_run_id": run.identity.run_id,
        "memagent_peak_bytes": peaks[0]["peak_allocated_bytes"] if peaks else None,
    }


def _run_since(before: RegisteredRun | None) -> RegisteredRun | None:
    run = newest_run_of_thread()
    return None if run is before else run


def end_out_of_memory(error: BaseException, before: RegisteredRun | None) -> bool:
    """End a trial's run and free what the failed step holds; False for any other error.

    before: the thread's newest run when the trial began, which goes on.
    """
    if status_of(error) != "oom":
        return False
    run = _run_since(before)
    if run is not None and run.status == "running":
        run.fail_with(error)
    for link in error_chain(error):
        # frames of the failed step keep its tensors
        traceback.clear_frames(link.__traceback__)
    _return_memory()
    return True


def _return_memory() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
