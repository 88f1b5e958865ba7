"""`record_trace`: what a training step of the user's own objects allocates and frees, found by running it on fake
tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from memagent.errors import TraceError
from memagent.estimator.trace import isolation
from memagent.estimator.trace.events import Trace
from memagent.estimator.trace.session import CPU, CUDA, CUDA_ON_CPU, Job

TIMEOUT_S = 60.0
LIMIT_GROWTH_BYTES = 4 << 30
"""A trace of a 70B model stays far below; a factory that insists on real values must not take the host's memory."""


def record_trace(
    model: Any,
    inputs: Any,
    *,
    targets: Any = None,
    optimizer: Any = "adamw",
    loss: Callable[..., Any] | None = None,
    autocast: str | None = None,
    scaler: bool = False,
    device: str = "cuda",
    steps: int = 2,
    accumulate: int = 1,
    clip_norm: float | None = None,
    keep_output: bool = True,
    set_to_none: bool = True,
    timeout_s: float = TIMEOUT_S,
    limit_growth_bytes: int | None = LIMIT_GROWTH_BYTES,
) -> Trace:
    """Run `steps` training steps on fake tensors in a process of their own, and return every allocation and release
    in order.

    `model` is a module (on any device; it is not touched), a callable that builds one, or "path.py:factory". `inputs`
    is what it is called with: a tensor, a tuple, a dict, real or fake or as `(shape, dtype name)` in place of a
    tensor. `optimizer` is one made for the model, a name of `torch.optim`, a callable that takes the parameters, or
    None. `loss(output, targets)` gets the inputs where no targets are given; without a loss the model's own is used.
    `autocast` is None, "bf16" or "fp16". `device` is "cuda" (CUDA's rules, no GPU needed) or "cpu".

    Raises TraceError, with the operator's name in `op`, for a step that can't be traced, takes longer than
    `timeout_s` seconds, or makes the tracing process grow by more than `limit_growth_bytes`. The calling process
    changes in nothing: neither its random state, nor the model, nor a device.
    """
    if device not in ("cuda", "cpu"):
        raise TraceError(f"can trace for cuda and cpu, not for {device!r}")
    if steps < 1 or accumulate < 1:
        raise TraceError("steps and accumulate must be at least 1")
    plan = {
        "loss": loss, "autocast": autocast, "scaler": scaler, "accumulate": accumulate, "keep_output": keep_output,
        "set_to_none": set_to_none, "clip_norm": clip_norm, "steps": steps,
    }  # fmt: skip
    job = Job(
        model,
        inputs,
        targets,
        optimizer,
        CUDA if device == "cuda" else CPU,
        plan,
        limit_growth_bytes,
    )
    run = isolation.trace_in_fork if isolation.can_fork() else isolation.trace_in_interpreter
    try:
        return run(job, timeout_s=timeout_s)
    except TraceError as error:
        if _ENGINE_REFUSES in str(error) and run is isolation.trace_in_fork:
            return isolation.trace_in_interpreter(job, timeout_s=timeout_s)
        if job.device_rules != CUDA or not _may_be_rules(error):
            raise
        try:
            return run(replace(job, device_rules=CUDA_ON_CPU), timeout_s=timeout_s)
        except TraceError:
            raise error from None  # the first failure tells more


_ENGINE_REFUSES = "autograd's threading"
"""Of what the engine says in a fork of a process that has run backward on a GPU."""


def _may_be_rules(error: TraceError) -> bool:
    """Whether other device rules may help: the process died, or fake cuda could not be set up."""
    return isinstance(error, isolation.ChildDiedError) or "fake cuda" in str(error)
