"""A step from sizes that are known already, as `live` reads them off a model and its optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memagent.estimator.estimate import Estimate

UNCERTAIN = 0.3
"""Relative error allowed for activations reckoned by module; the other components are exact or nearly so."""


@dataclass(frozen=True)
class StepSizes:
    """Bytes that a step's tensors take. `temporaries_bytes` are what the optimizer allocates within its step."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    buffers_bytes: int = 0
    activations_bytes: int | None = None
    temporaries_bytes: int = 0
    context_bytes: int = 0


def estimate_step(
    sizes: StepSizes, *, limit_bytes: int | None = None, assumptions: dict[str, Any] | None = None
) -> Estimate:
    """The peak of a step: the larger of the moment when activations are held and gradients begin, and the optimizer's step.

    At the end of forward the step holds parameters, buffers, state (from the second step on) and all activations; gradients grow as
    activations are freed, so their sum never reaches both totals. At the optimizer's step activations are gone, gradients and
    temporaries are there.
    """
    known = sizes.parameters_bytes + sizes.buffers_bytes + sizes.optimizer_state_bytes + sizes.context_bytes
    activations = sizes.activations_bytes or 0
    forward_end = known + activations
    backward = known + max(activations, sizes.gradients_bytes) + min(activations, sizes.gradients_bytes) // 4
    optimizer_step = known + sizes.gradients_bytes + sizes.temporaries_bytes
    phases = {"forward": forward_end, "backward": backward, "optimizer": optimizer_step}
    peak = max(phases.values())
    margin = int(UNCERTAIN * activations)
    return Estimate(
        method="formula",
        peak_allocated_bytes=peak,
        intervals={"allocated": (max(known, peak - margin), peak + margin)},
        components={
            "parameters": sizes.parameters_bytes,
            "gradients": sizes.gradients_bytes,
            "optimizer_state": sizes.optimizer_state_bytes,
            "buffers": sizes.buffers_bytes,
            "activations": activations,
            "workspace": sizes.temporaries_bytes,
            "context": sizes.context_bytes,
        },
        limit_bytes=limit_bytes,
        assumptions=assumptions or {},
        timeline=tuple(phases.items()),
        phases=phases,
    )
