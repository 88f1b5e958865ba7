"""Predicted beside observed, per component: where a prediction was wrong, and by how much.

Predicted beside observed, by level and by phase.

1. A level is where one looks: what tensors take (allocated), what the caching allocator has obtained for them (reserved), what the device
   shows of the process (device). Each has an interval of its own, in which nine of ten runs should lie.
2. A phase's peak is the most allocated while it ran, over all steps of the launch; the prediction's is that of a steady step.
3. A host has no caching allocator and no context of its own: only the first level is observed there.
"""

from __future__ import annotations

from math import prod

from memagent.wire.fields import COMPONENTS, PHASES
from memagent_server.compare.mismatch_reasons import Facts, reason, reason_of_phase
from memagent_server.schemas.runs import (
    ComponentResidual,
    Components,
    LevelResidual,
    PhaseResidual,
    Residual,
)
from memagent_server.store.engine import Session
from memagent_server.store.models import Prediction, Run, Stream
from memagent_server.store.predictions import list_predictions
from memagent_server.store.streams import current_streams, phase_of

OBSERVED_COLUMNS = (
    "parameters",
    "gradients",
    "optimizer_state",
    "buffers",
    "activations",
    "context",
)
"""Components that agents measure: the column of `parameters` is `parameters_bytes`."""


def components(session: Session, run_id: str) -> Components | None:
    """Predicted and observed bytes of each component that either side knows, in the shape of docs/http.md; None for an unknown run.

    The newest prediction counts, a traced one before a formula's; observed are the readings of its rank and device in the newest
    launch. A residual is observed minus predicted.
    """
    if session.get(Run, run_id) is None:
        return None
    prediction = _best(list_predictions(session, run_id))
    stream = _stream_of(current_streams(session, [run_id]), prediction)
    predicted, observed = (prediction.components if prediction else {}), observe(stream)
    facts = _facts(prediction, stream)
    return Components(
        run_id=run_id,
        rank=stream.rank if stream else prediction.rank if prediction else 0,
        device=stream.device if stream else prediction.device if prediction else None,
        step=stream.last_step if stream else None,
        method=prediction.method if prediction else None,
        components=[
            ComponentResidual(
                **residual(predicted.get(name), observed.get(name)),
                component=name,
                reason=reason(name, predicted.get(name), observed.get(name), facts),
            )
            for name in COMPONENTS
            if name in predicted or name in observed
        ],
        peak=residual(
            prediction.peak_allocated_bytes if prediction else None,
            stream.peak_bytes if stream else None,
        ),
        levels=levels(prediction, stream),
        phases=phases(prediction, stream, facts),
    )


def observe(stream: Stream | None) -> dict[str, int]:
    """Bytes of each component that a stream's newest readings tell.

    Fragmentation is what the caching allocator had at its peak over what tensors took at theirs: cache that the peak uses is none. A host
    has no such allocator.
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
    return observed


def _facts(prediction: Prediction | None, stream: Stream | None) -> Facts:
    assumptions = prediction.assumptions if prediction else {}
    seen = sum(
        prod(shape)
        for given in assumptions.get("inputs", ())
        if (shape := given.get("shape")) is not None
    )
    came = stream.latest.get("input_size") if stream else None
    return Facts(
        method=prediction.method if prediction else "formula",
        assumptions=assumptions,
        input_ratio=came / seen if seen and came else None,
        on_host=stream is not None and stream.kind == "host",
        kept_bytes=_kept(stream),
    )


def _kept(stream: Stream | None) -> int | None:
    """What the newest step left that belongs to no component; None where the agent did not read what that takes."""
    held = stream.latest.get("allocated_bytes") if stream is not None else None
    if stream is None or held is None:
        return None
    names = (
        "parameters",
        "gradients",
        "optimizer_state",
        "buffers",
        *(("context",) if stream.kind == "host" else ()),
    )
    parts = [size for name in names if (size := stream.latest.get(f"{name}_bytes")) is not None]
    return max(0, held - sum(parts)) if len(parts) == len(names) else None


def _best(predictions: list[Prediction]) -> Prediction | None:
    traced = [prediction for prediction in predictions if prediction.method == "trace"]
    return next(iter(traced or predictions), None)


def _stream_of(streams: list[Stream], prediction: Prediction | None) -> Stream | None:
    """The stream that the prediction is about, or without one the first of the lowest rank."""
    if prediction is not None:
        for stream in streams:
            if (stream.rank, stream.device) == (prediction.rank, prediction.device):
                return stream
        return None
    return min(streams, key=lambda stream: (stream.rank, stream.id), default=None)


LEVELS = ("allocated", "reserved", "device")


def levels(prediction: Prediction | None, stream: Stream | None) -> list[LevelResidual]:
    """The levels that either side knows, with the interval and whether the observed peak lies in it."""
    rows = []
    for level in LEVELS:
        predicted = getattr(prediction, f"peak_{level}_bytes", None)
        observed = _observed(level, stream)
        if predicted is None and observed is None:
            continue
        low, high = (prediction.intervals.get(level) if prediction else None) or (None, None)
        rows.append(
            LevelResidual(
                **residual(predicted, observed),
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
    prediction: Prediction | None, stream: Stream | None, facts: Facts
) -> list[PhaseResidual]:
    """The phases that either side knows, in the order of a step and then the user's own, with the likely reason of a large residual."""
    predicted = dict(prediction.phases) if prediction else {}
    observed = (
        {phase: peak for name, peak in stream.peaks.items() if (phase := phase_of(name))}
        if stream
        else {}
    )
    return [
        PhaseResidual(
            **residual(predicted.get(phase), observed.get(phase)),
            phase=phase,
            reason=reason_of_phase(phase, predicted.get(phase), observed.get(phase), facts),
        )
        for phase in dict.fromkeys((*PHASES, *sorted(observed)))
        if phase in predicted or phase in observed
    ]


def residual(predicted: int | None, observed: int | None) -> Residual:
    """Both, and observed minus predicted where both are known."""
    difference = observed - predicted if predicted is not None and observed is not None else None
    return Residual(predicted, observed, difference)


def _observed(level: str, stream: Stream | None) -> int | None:
    if stream is None:
        return None
    if level == "allocated":
        return stream.peak_bytes
    if stream.kind == "host":
        return None
    if level == "reserved":
        return stream.peaks.get("peak_reserved_bytes")
    return stream.peaks.get("process_device_bytes")
