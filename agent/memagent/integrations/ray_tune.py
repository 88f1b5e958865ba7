"""Ray Tune: trials that won't fit, or run out of memory, end with a result instead of an error.

    @end_too_large(loss=math.inf)
    def train(config):
        check_trial(make_model, ((config["batch"], 1024), "int64"), gpu="a100")
        ...

Tune errors a trial for any exception, and schedulers learn nothing from it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ray import tune

from memagent.integrations.trials import (
    TrialTooLargeError,
    check_trial,
    end_out_of_memory,
    run_values,
)
from memagent.lifecycle.registry import newest_run_of_thread

__all__ = ["check_trial", "end_too_large"]

TrainFunction = Callable[[dict[str, Any]], Any]


def end_too_large(**metrics: Any) -> Callable[[TrainFunction], TrainFunction]:
    """Report `metrics` for a trial that won't fit or runs out of memory, such as `loss=math.inf`.

    The result says which in `memagent_verdict`, with the bytes needed or the run's peak.
    """

    def decorate(train: TrainFunction) -> TrainFunction:
        @wraps(train)
        def run_trial(config: dict[str, Any]) -> Any:
            before = newest_run_of_thread()
            try:
                return train(config)
            except TrialTooLargeError as error:
                values = error.values
            except Exception as error:
                if not end_out_of_memory(error, before):
                    raise
                values = {"memagent_verdict": "out of memory", **run_values(before)}
            tune.report({**metrics, **values})
            return None

        return run_trial

    return decorate
