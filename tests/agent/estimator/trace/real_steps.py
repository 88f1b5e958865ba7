"""The truth for the tests of traces: the same steps on real tensors, with the same recorder."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from memagent.estimator.trace.events import Trace
from memagent.estimator.trace.recorder import StorageRecorder
from memagent.estimator.trace.session import build_optimizer
from memagent.estimator.trace.steps import StepPlan, record_model, run_steps


def real_trace(
    factory: Callable[[], torch.nn.Module],
    inputs: Any,
    *,
    targets: Any = None,
    optimizer: Any = "adamw",
    **plan: Any,
) -> Trace:
    """Run the step on real CPU tensors, with new copies of the inputs each time."""
    model = factory()
    recorder = StorageRecorder("cpu")
    instance = build_optimizer(optimizer, model, lambda _: None)
    gc.collect()
    gc.disable()
    try:
        with recorder:
            record_model(recorder, model)
            run_steps(
                recorder, model, lambda: (_copy(inputs), _copy(targets)), instance, StepPlan(**plan)
            )
    finally:
        gc.enable()
    return Trace(tuple(recorder.events()), plan.get("steps", 2), 0, 0, "cpu")


def retained_bytes(trace: Trace) -> int:
    """Return the bytes alive after the last event."""
    return sum(
        event.size_bytes if event.kind == "alloc" else -event.size_bytes for event in trace.events
    )


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: _copy(item) for name, item in value.items()}
    return tuple(map(_copy, value)) if isinstance(value, tuple) else value
