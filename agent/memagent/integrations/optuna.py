"""Optuna: trials that won't fit are pruned before they allocate, and samplers learn the limit.

    @prune_out_of_memory
    def objective(trial):
        batch = trial.suggest_int("batch", 8, 512)
        prune_unless_it_fits(trial, make_model, ((batch, 1024), "int64"))
        ...

A trial that was checked has the user attributes `memagent_verdict`, `memagent_needed_bytes` and
`memagent_limit_bytes`, one with a run `memagent_run_id` and `memagent_peak_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from optuna import TrialPruned

from memagent.integrations.trials import (
    TrialTooLargeError,
    check_trial,
    end_out_of_memory,
    excess_gib,
    run_values,
    trial_values,
)
from memagent.lifecycle.registry import newest_run_of_thread

if TYPE_CHECKING:
    from optuna.trial import Trial

    from memagent.estimator.estimate import Estimate

Values = TypeVar("Values")


def prune_unless_it_fits(trial: Trial, model: Any, inputs: Any, **options: Any) -> Estimate:
    """Prune a trial whose training step won't fit; it is traced without running.

    `model`, `inputs` and `options` are those of `memagent.estimate`: a callable that returns the
    model allocates nothing. Without `gpu` and `limit_bytes` the limit is the memory of the GPU
    here. Raises optuna.TrialPruned, and EstimateError for an invalid argument.
    """
    try:
        result = check_trial(model, inputs, **options)
    except TrialTooLargeError as error:
        _store(trial, error.values)
        raise TrialPruned(str(error)) from None
    _store(trial, trial_values(result))
    return result


def prune_out_of_memory(objective: Callable[[Trial], Values]) -> Callable[[Trial], Values]:
    """Prune a trial that runs out of memory instead of ending the study.

    Its run ends as `oom`, its tensors are freed and the allocator's cache is returned, so that the
    next trial has the whole GPU. From Optuna 5 on, each trial gets the constraint `memory`, the GiB
    by which it exceeds its limit: samplers then suggest fewer that do.
    """

    @wraps(objective)
    def run_trial(trial: Trial) -> Values:
        before = newest_run_of_thread()
        try:
            return objective(trial)
        except Exception as error:
            if not end_out_of_memory(error, before):
                raise
            _store(trial, {"memagent_verdict": "out of memory"})
            pruned = TrialPruned(f"out of memory: {error}")
        finally:
            _store(trial, run_values(before))
            _constrain(trial)
        # outside of `except`: as its context, the error would keep the frames
        raise pruned

    return run_trial


def _constrain(trial: Trial) -> None:
    if hasattr(trial, "set_constraint"):
        trial.set_constraint("memory", excess_gib(trial.user_attrs))


def _store(trial: Trial, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        trial.set_user_attr(name, value)
