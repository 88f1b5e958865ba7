"""The truth that traces are tested against: the same steps on real tensors, seen by the same recorder."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from memagent.estimator.trace.events import Trace
from memagent.estimator.trace.recorder import StorageRecorder
from memagent.estimator.trace.session import optimizer_of
from memagent.estimator.trace.steps import StepPlan, mark_model, run_steps


def real_trace(
    factory: Callable[[], torch.nn.Module],
    inputs: Any,
    *,
    targets: Any = None,
    optimizer: Any = "adamw",
    **plan: Any,
) -> Trace:
    """Run the step for real on the CPU, with fresh copies of the inputs each time."""
    model = factory()
    recorder = StorageRecorder("cpu")
    made = optimizer_of(optimizer, model, lambda _: None)
    gc.collect()
    gc.disable()
    try:
        with recorder:
            mark_model(recorder, model)
            run_steps(
                recorder, model, lambda: (_copied(inputs), _copied(targets)), made, StepPlan(**plan)
            )
    finally:
        gc.enable()
    return Trace(tuple(recorder.events()), plan.get("steps", 2), 0, 0, "cpu")


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    return tuple(map(_copied, value)) if isinstance(value, tuple) else value
