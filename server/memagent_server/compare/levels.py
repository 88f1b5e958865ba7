"""Predicted beside observed, by level and by phase.

1. A level is where one looks: what tensors take (allocated), what the caching allocator has obtained for them (reserved), what the device
   shows of the process (device). Each has an interval of its own, in which nine of ten runs should lie.
2. A phase's peak is the most allocated while it ran, over all steps of the launch; the prediction's is that of a steady step.
3. A host has no caching allocator and no context of its own: only the first level is observed there.
"""

from __future__ import annotations

from typing import Any

from memagent.wire.fields import PHASES
from memagent_server.compare.mismatch_reasons import Facts, reason_of_phase
from memagent_server.store.models import Prediction, Stream
from memagent_server.store.streams import phase_of

LEVELS = ("allocated", "reserved", "device")


def levels(prediction: Prediction | None, stream: Stream | None) -> list[dict[str, Any]]:
    """The levels that either side knows, with the interval and whether the observed peak lies in it."""
    rows = []
    for level in LEVELS:
        predicted = getattr(prediction, f"peak_{level}_bytes", None)
        observed = _observed(level, stream)
        if predicted is None and observed is None:
            continue
        low, high = (prediction.intervals.get(level) if prediction else None) or (None, None)
        rows.append(
            {
                "level": level,
                **figures(predicted, observed),
                "low_bytes": low,
                "high_bytes": high,
                "is_within": None
                if observed is None or low is None or high is None
                else low <= observed <= high,
            }
        )
    return rows


def phases(
    prediction: Prediction | None, stream: Stream | None, facts: Facts
) -> list[dict[str, Any]]:
    """The phases that either side knows, in the order of a step and then the user's own, with the likely reason of a large residual."""
    predicted = dict(prediction.phases) if prediction else {}
    observed = (
        {phase: peak for name, peak in stream.peaks.items() if (phase := phase_of(name))}
        if stream
        else {}
    )
    return [
        {
            "phase": phase,
            **figures(predicted.get(phase), observed.get(phase)),
            "reason": reason_of_phase(phase, predicted.get(phase), observed.get(phase), facts),
        }
        for phase in dict.fromkeys((*PHASES, *sorted(observed)))
        if phase in predicted or phase in observed
    ]


def figures(predicted: int | None, observed: int | None) -> dict[str, int | None]:
    """Both, and observed minus predicted where both are known."""
    residual = observed - predicted if predicted is not None and observed is not None else None
    return {"predicted_bytes": predicted, "observed_bytes": observed, "residual_bytes": residual}


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
