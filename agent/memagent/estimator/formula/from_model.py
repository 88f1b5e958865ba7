"""The formula estimator for a live model and optimizer.

Sizes are read from the objects; activations are derived from modules and input shapes. Nothing
runs, no tensor's data is touched, and torch is never imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memagent.components import distinct, modules_of, parameters_of
from memagent.estimator.devices import context_of
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.module_activations import saved_bytes
from memagent.estimator.formula.state_sizes import KNOWN_OPTIMIZERS, bytes_of, trained_parameters
from memagent.estimator.input_specs import TensorSpec
from memagent.estimator.intervals import (
    FRAGMENTATION_RATIO,
    Interval,
    context_widths,
    intervals_of,
    ratio_table,
)

GROUP = "modules"
"""The trainings that the interval is fitted to: operations outside of modules, autocast and
checkpointing are not known."""


def predict(
    models: Sequence[Any],
    optimizers: Sequence[Any],
    *,
    inputs: tuple[TensorSpec, ...] | None = None,
    limit_bytes: int | None = None,
    device_kind: str = "host",
    context_bytes: int = 0,
    workspace_bytes: int = 0,
) -> Estimate:
    """Return what a step of these needs.

    The inputs are the shapes and dtypes of the tensors passed to forward. Without them the estimate
    has no activations, and its assumptions say so. The context is what the process holds besides
    tensors; the workspaces are what cuBLAS holds in the allocator.
    """
    parameters = parameters_of(models, optimizers)
    activations: int | None = None
    notes: dict[str, Any] = {"activations": "not included: the inputs are not known"}
    if inputs:
        activations, notes = saved_bytes(models, inputs)
    names = [type(optimizer).__name__ for optimizer in optimizers]
    assumptions = {
        "optimizer": names,
        "inputs": [{"shape": list(shape), "dtype": dtype} for shape, dtype in inputs or ()],
        **notes,
    }
    unknown = {*names} - KNOWN_OPTIMIZERS
    if unknown:
        listed = ", ".join(sorted(unknown))
        assumptions["optimizer_state"] = f"two tensors a parameter assumed for {listed}"
    buffers = distinct(
        buffer
        for module in modules_of(models)
        for buffer in module._buffers.values()
        if buffer is not None
    )
    state = sum(size(parameter) for parameter, size in trained_parameters(optimizers))
    sizes = StepSizes(
        parameters_bytes=sum(map(bytes_of, parameters)),
        gradients_bytes=sum(bytes_of(p) for p in parameters if p.requires_grad),
        optimizer_state_bytes=int(state),
        buffers_bytes=sum(map(bytes_of, buffers)),
        activations_bytes=activations,
        temporaries_bytes=_temporaries_bytes(optimizers, device_kind),
        context_bytes=context_bytes,
        workspace_bytes=workspace_bytes,
    )
    return estimate_step(
        sizes, limit_bytes=limit_bytes, assumptions=assumptions, on_gpu=device_kind == "cuda"
    )


def _temporaries_bytes(optimizers: Sequence[Any], device_kind: str) -> int:
    """Return the temporaries of the first step of an optimizer.

    foreach (the default on GPUs) copies all parameters of a group once; the loop copies one
    parameter at a time, twice; a fused step copies none.
    """
    largest = 0
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        sizes = [bytes_of(parameter) for parameter in group["params"] if parameter.requires_grad]
        if not sizes or group.get("fused"):
            continue
        foreach = group.get("foreach")
        uses_foreach = foreach if foreach is not None else device_kind == "cuda"
        largest = max(largest, sum(sizes) if uses_foreach else 2 * max(sizes))
    return largest


@dataclass(frozen=True)
class StepSizes:
    """Bytes of a step's tensors.

    `temporaries_bytes` are allocated within the optimizer's step; `workspace_bytes` is cuBLAS's;
    `context_bytes` is what the process holds besides (0 on a GPU: not measured).
    """

    parameters_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    buffers_bytes: int = 0
    activations_bytes: int | None = None
    temporaries_bytes: int = 0
    context_bytes: int = 0
    workspace_bytes: int = 0


def estimate_step(
    sizes: StepSizes,
    *,
    limit_bytes: int | None = None,
    assumptions: dict[str, Any] | None = None,
    on_gpu: bool = False,
) -> Estimate:
    """Return the peak of a step: that of backward's start, or that of the optimizer's step.

    At the end of forward the step holds parameters, buffers, state (from the second step on) and
    all activations. Gradients grow as activations are freed, so backward never holds all of both.
    In the optimizer's step gradients and temporaries replace activations. On a host the process's
    own memory counts among its bytes; on a GPU the context is outside of the allocator. Without
    activations there is no interval: the peak is then a lower bound.
    """
    outside = 0 if on_gpu else sizes.context_bytes
    states = sizes.parameters_bytes + sizes.buffers_bytes + sizes.optimizer_state_bytes + outside
    persistent = states + sizes.workspace_bytes
    activations, gradients = sizes.activations_bytes or 0, sizes.gradients_bytes
    phases = {
        "forward": persistent + activations,
        "backward": persistent + max(activations, gradients) + min(activations, gradients) // 4,
        "optimizer": persistent + gradients + sizes.temporaries_bytes,
    }
    peak = max(phases.values())
    passing = peak - states
    context = context_of(sizes.context_bytes or None)
    fragmentation = round(FRAGMENTATION_RATIO * passing) if on_gpu else 0
    reserved = peak + fragmentation if on_gpu else None
    device = peak + fragmentation + context.size_bytes if on_gpu else None
    intervals: dict[str, Interval] = {}
    if sizes.activations_bytes is not None:
        intervals = intervals_of(
            ratio_table().ratios_for(GROUP),
            passing_bytes=passing,
            allocated=peak,
            reserved=reserved,
            device=device,
            context=context_widths(context.size_bytes, context.interval),
        )
    return Estimate(
        method="formula",
        peak_allocated_bytes=peak,
        peak_reserved_bytes=reserved,
        peak_device_bytes=device,
        intervals=intervals,
        error_group=GROUP,
        components={
            "parameters": sizes.parameters_bytes,
            "gradients": gradients,
            "optimizer_state": sizes.optimizer_state_bytes,
            "buffers": sizes.buffers_bytes,
            "activations": activations,
            "workspace": sizes.temporaries_bytes + sizes.workspace_bytes,
            "fragmentation": fragmentation,
            "context": context.size_bytes if on_gpu else sizes.context_bytes,
        },
        limit_bytes=limit_bytes,
        assumptions=assumptions or {},
        timeline=tuple(phases.items()),
        phases=phases,
    )
