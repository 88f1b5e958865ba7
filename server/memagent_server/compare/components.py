"""Predicted beside observed, per component: where a prediction was wrong, and by how much."""

from __future__ import annotations

from math import prod
from typing import Any

from sqlalchemy.orm import Session

from memagent.wire.fields import COMPONENTS
from memagent_server.compare.levels import figures, levels, phases
from memagent_server.compare.mismatch_reasons import Facts, reason
from memagent_server.store.models import Prediction, Run, Stream
from memagent_server.store.predictions import list_predictions
from memagent_server.store.streams import current_streams

OBSERVED_COLUMNS = (
    "parameters",
    "gradients",
    "optimizer_state",
    "buffers",
    "activations",
    "context",
)
"""Components that agents measure: the column of `parameters` is `parameters_bytes`."""


def components(session: Session, run_id: str) -> dict[str, Any] | None:
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
    return {
        "run_id": run_id,
        "rank": stream.rank if stream else prediction.rank if prediction else 0,
        "device": stream.device if stream else prediction.device if prediction else None,
        "step": stream.last_step if stream else None,
        "method": prediction.method if prediction else None,
        "components": [
            {
                "component": name,
                **figures(predicted.get(name), observed.get(name)),
                "reason": reason(name, predicted.get(name), observed.get(name), facts),
            }
            for name in COMPONENTS
            if name in predicted or name in observed
        ],
        "peak": figures(
            prediction.peak_allocated_bytes if prediction else None,
            stream.peak_bytes if stream else None,
        ),
        "levels": levels(prediction, stream),
        "phases": phases(prediction, stream, facts),
    }


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
