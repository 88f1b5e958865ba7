"""A step from sizes that are known already, as `live` reads them off a model and its optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memagent.estimator.devices import context_of
from memagent.estimator.estimate import Estimate, Interval
from memagent.estimator.intervals import FRAGMENTED, FROM_MODULES, context_widths, intervals_of


@dataclass(frozen=True)
class StepSizes:
    """Bytes that a step's tensors take. `temporaries_bytes` are what the optimizer allocates within its step; `context_bytes` what the
    process holds besides (None or 0 on a GPU: not measured)."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    buffers_bytes: int = 0
    activations_bytes: int | None = None
    temporaries_bytes: int = 0
    context_bytes: int = 0


def estimate_step(
    sizes: StepSizes,
    *,
    limit_bytes: int | None = None,
    assumptions: dict[str, Any] | None = None,
    on_gpu: bool = False,
) -> Estimate:
    """The peak of a step: the larger of the moment when activations are held and gradients begin, and the optimizer's step.

    At the end of forward the step holds parameters, buffers, state (from the second step on) and all activations; gradients grow as
    activations are freed, so their sum never reaches both totals. At the optimizer's step activations are gone, gradients and
    temporaries are there. On a host what the process held before counts among its bytes; on a GPU the context is outside of the
    allocator. Without activations there is no interval: the peak is then the least that it can be.
    """
    outside = 0 if on_gpu else sizes.context_bytes
    known = sizes.parameters_bytes + sizes.buffers_bytes + sizes.optimizer_state_bytes + outside
    activations = sizes.activations_bytes or 0
    forward_end = known + activations
    backward = (
        known
        + max(activations, sizes.gradients_bytes)
        + min(activations, sizes.gradients_bytes) // 4
    )
    optimizer_step = known + sizes.gradients_bytes + sizes.temporaries_bytes
    phases = {"forward": forward_end, "backward": backward, "optimizer": optimizer_step}
    peak = max(phases.values())
    passing = peak - known
    context = context_of(sizes.context_bytes or None)
    fragmentation = round(FRAGMENTED * passing) if on_gpu else 0
    reserved = peak + fragmentation if on_gpu else None
    device = peak + fragmentation + context.size_bytes if on_gpu else None
    intervals: dict[str, Interval] = {}
    if sizes.activations_bytes is not None:
        intervals = intervals_of(
            FROM_MODULES,
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
        components={
            "parameters": sizes.parameters_bytes,
            "gradients": sizes.gradients_bytes,
            "optimizer_state": sizes.optimizer_state_bytes,
            "buffers": sizes.buffers_bytes,
            "activations": activations,
            "workspace": sizes.temporaries_bytes,
            "fragmentation": fragmentation,
            "context": context.size_bytes if on_gpu else sizes.context_bytes,
        },
        limit_bytes=limit_bytes,
        assumptions=assumptions or {},
        timeline=tuple(phases.items()),
        phases=phases,
    )
