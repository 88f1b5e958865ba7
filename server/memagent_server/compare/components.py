"""Predicted against observed memory: by component, by level and by phase.

1. Levels are views of the same memory: bytes of tensors (allocated), bytes that the caching
   allocator obtained for them (reserved), bytes of the process on the device (device). Each has an
   interval that should contain nine of ten runs.
2. A phase's observed peak is the highest of all its steps in the launch. The prediction's is that
   of a steady step.
3. A host has neither a caching allocator nor a context: only the first level is observed there.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from msgspec.structs import asdict

from memagent.wire.fields import COMPONENTS, PHASES
from memagent_server.compare.mismatch_reasons import MismatchInput, reason, reason_of_phase
from memagent_server.schemas.predictions import (
    ComponentResidual,
    Components,
    LevelResidual,
    PhaseResidual,
    Residual,
)
from memagent_server.store.engine import Session
from memagent_server.store.models import PredictionRow, RunRow, StreamRow
from memagent_server.store.predictions import prediction_for
from memagent_server.store.streams import current_streams, phase_of
from memagent_server.store.summaries import nearest_to_limit

OBSERVED_COLUMNS = (
    "parameters",
    "gradients",
    "optimizer_state",
    "buffers",
    "activations",
    "context",
)
"""Components that agents measure: the column of `parameters` is `parameters_bytes`."""
OTHER_TENSORS = "other_tensors"
"""Tensors that live on after a step and belong to no component: a leak is here."""
LEVELS = ("allocated", "reserved", "device")
_MAX_INPUT_SIZE = 2**62
_MAX_DIMENSIONS = 16
"""Shapes beyond these bounds are ignored: a prediction's assumptions are free-form."""


def components(session: Session, run_id: str, stream: StreamRow | None = None) -> Components | None:
    """Return predicted and observed bytes of each known component; None for an unknown run.

    Observed are the readings of `stream`, by default the one nearest to its limit. The newest
    prediction of the most exact method counts, preferably of the same rank and device. A residual
    is observed minus predicted.
    """
    run = session.get(RunRow, run_id)
    if run is None:
        return None
    stream = stream or nearest_to_limit(current_streams(session, [run_id]))
    prediction = prediction_for(session, run_id, stream)
    predicted, observed = (prediction.components if prediction else {}), observe(stream)
    inputs = _mismatch_input(run, prediction, stream)
    return Components(
        run_id=run_id,
        rank=stream.rank if stream else prediction.rank if prediction else 0,
        device=stream.device if stream else prediction.device if prediction else None,
        step=stream.last_step if stream else None,
        method=prediction.method if prediction else None,
        components=[
            ComponentResidual(
                **asdict(residual(predicted.get(name), observed.get(name))),
                component=name,
                reason=reason(name, predicted.get(name), observed.get(name), inputs),
            )
            for name in (*COMPONENTS, OTHER_TENSORS)
            if name in predicted or name in observed
        ],
        peak=residual(
            prediction.peak_allocated_bytes if prediction else None,
            stream.peak_bytes if stream else None,
        ),
        levels=levels(prediction, stream),
        phases=phases(prediction, stream, inputs),
    )


def observe(stream: StreamRow | None) -> dict[str, int]:
    """Return the bytes of each component in a stream's newest readings.

    Fragmentation is the peak of reserved minus that of allocated memory: cache that the peak needs
    doesn't count. A host has no caching allocator.
    """
    if stream is None:
        return {}
    latest = stream.latest
    observed = {
        name: latest[f"{name}_bytes"]
        for name in OBSERVED_COLUMNS
        if latest.get(f"{name}_bytes") is not None
    }
    reserved, allocated = (
        stream.peaks.get("peak_reserved_bytes"),
        stream.peaks.get("peak_allocated_bytes"),
    )
    if stream.kind == "cuda" and reserved is not None and allocated is not None:
        observed["fragmentation"] = max(0, reserved - allocated)
    if other := _retained_bytes(stream):
        observed[OTHER_TENSORS] = other
    return observed


def _mismatch_input(
    run: RunRow, prediction: PredictionRow | None, stream: StreamRow | None
) -> MismatchInput:
    assumptions = prediction.assumptions if prediction else {}
    predicted_size = _input_size(assumptions.get("inputs"))
    observed_size = stream.latest.get("input_size") if stream else None
    return MismatchInput(
        assumptions=assumptions,
        config=run.config,
        input_ratio=observed_size / predicted_size if predicted_size and observed_size else None,
        on_host=stream is not None and stream.kind == "host",
        retained_bytes=_retained_bytes(stream),
    )


def _input_size(inputs: Any) -> int:
    """Return the number of elements of a prediction's inputs, as far as their shapes are valid."""
    items = inputs if isinstance(inputs, list) else ()
    tensors = [item for item in items if isinstance(item, Mapping)]
    shapes = [shape for tensor in tensors if isinstance(shape := tensor.get("shape"), list)]
    sizes = [prod(shape) for shape in shapes if _is_shape(shape)]
    return min(sum(sizes), _MAX_INPUT_SIZE)


def _is_shape(shape: list[Any]) -> bool:
    return len(shape) <= _MAX_DIMENSIONS and all(
        type(side) is int and 0 <= side <= _MAX_INPUT_SIZE for side in shape
    )


def _retained_bytes(stream: StreamRow | None) -> int | None:
    """Return what is allocated after the newest step and belongs to no component.

    None if a reading is missing, except that of buffers: a model may have none.
    """
    allocated = stream.latest.get("allocated_bytes") if stream is not None else None
    if stream is None or allocated is None:
        return None
    names = (
        "parameters",
        "gradients",
        "optimizer_state",
        *(("context",) if stream.kind == "host" else ()),
    )
    parts = [size for name in names if (size := stream.latest.get(f"{name}_bytes")) is not None]
    if len(parts) < len(names):
        return None
    rest: int = allocated - sum(parts) - (stream.latest.get("buffers_bytes") or 0)
    return max(0, rest)


def levels(prediction: PredictionRow | None, stream: StreamRow | None) -> list[LevelResidual]:
    """Return the known levels, with their interval and whether it contains the observed peak."""
    rows = []
    for level in LEVELS:
        predicted = getattr(prediction, f"peak_{level}_bytes", None)
        observed = _observed(level, stream)
        if predicted is None and observed is None:
            continue
        low, high = (prediction.intervals.get(level) if prediction else None) or (None, None)
        rows.append(
            LevelResidual(
                **asdict(residual(predicted, observed)),
                level=level,
                low_bytes=low,
                high_bytes=high,
                is_within=None
                if observed is None or low is None or high is None
                else low <= observed <= high,
            )
        )
    return rows


def phases(
    prediction: PredictionRow | None, stream: StreamRow | None, inputs: MismatchInput
) -> list[PhaseResidual]:
    """Return the known phases, those of a step first, with reasons for large residuals."""
    predicted = dict(prediction.phases) if prediction else {}
    observed = (
        {phase: peak for name, peak in stream.peaks.items() if (phase := phase_of(name))}
        if stream
        else {}
    )
    return [
        PhaseResidual(
            **asdict(residual(predicted.get(phase), observed.get(phase))),
            phase=phase,
            reason=reason_of_phase(phase, predicted.get(phase), observed.get(phase), inputs),
        )
        for phase in dict.fromkeys((*PHASES, *sorted(observed)))
        if phase in predicted or phase in observed
    ]


def residual(predicted: int | None, observed: int | None) -> Residual:
    """Both, and observed minus predicted where both are known."""
    difference = observed - predicted if predicted is not None and observed is not None else None
    return Residual(predicted, observed, difference)


def _observed(level: str, stream: StreamRow | None) -> int | None:
    if stream is None:
        return None
    if level == "allocated":
        return stream.peak_bytes
    if stream.kind == "host":
        return None
    if level == "reserved":
        return stream.peaks.get("peak_reserved_bytes")
    return stream.peaks.get("process_device_bytes")
