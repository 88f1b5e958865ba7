"""Forecasts, predictions and estimates of memory, and residuals: observed minus predicted."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from memagent.estimator.estimate import FitVerdict
from memagent.forecast.types import Level
from memagent.wire.messages import AdviceItem
from memagent_server.schemas.base import (
    Bytes,
    DeviceId,
    JsonObject,
    NextCursor,
    Ratio,
    RunId,
    Schema,
    Step,
    Timestamp,
)

METHODS = ("rehearsal", "trace", "formula")
"""The most exact first: a rehearsal is torch's own allocator, a formula knows sizes only."""


def precedence(method: str) -> int:
    """Return the place of a prediction's method, the most exact first."""
    return METHODS.index(method)


class ForecastSummary(Schema):
    """The worst of the newest forecasts of a run's streams. Seconds count from the forecast."""

    step: Step
    level: Level
    oom_probability: Ratio
    cause: str | None
    eta_step: float | None
    eta_s: float | None


class Forecast(Schema):
    """The forecast of a stream after `step`. Seconds count from the forecast."""

    rank: int
    attempt: int
    device: DeviceId
    at: Timestamp
    step: Step
    level: Level
    oom_probability: Ratio
    cause: str | None
    eta_step: float | None
    eta_low: float | None
    eta_high: float | None
    eta_s: float | None
    used_bytes: Bytes | None
    limit_bytes: Bytes | None
    growth_bytes_per_step: float | None
    growing_since_step: Step | None
    predecessor: Annotated[
        str | None, Meta(description="How the last run of the same program ended.")
    ]


class Forecasts(Schema):
    """The newest forecast of each stream, and a page of the changes, oldest first."""

    run_id: RunId
    forecasts: list[Forecast]
    history: list[Forecast]
    next_cursor: NextCursor


class Prediction(Schema):
    """An estimate for one rank and device."""

    id: int
    created_at: Timestamp
    method: str
    rank: int
    device: DeviceId
    peak_allocated_bytes: Bytes
    peak_reserved_bytes: Bytes | None
    peak_device_bytes: Bytes | None
    intervals: dict[str, tuple[Bytes, Bytes]]
    limit_bytes: Bytes | None
    components: dict[str, Bytes]
    phases: dict[str, Bytes]
    terms: dict[str, Bytes]
    assumptions: JsonObject
    advice: list[AdviceItem]


class PredictionPage(Schema):
    """A page of a run's predictions, the newest first."""

    run_id: RunId
    predictions: list[Prediction]
    next_cursor: NextCursor


class StoredRehearsal(Schema):
    """A rehearsed script, and its prediction as sent."""

    id: int
    created_at: Timestamp
    project: str
    fingerprint: str
    script: str
    gpu: str
    world_size: int
    user: str | None
    host: str | None
    fits: bool
    prediction: JsonObject


class RehearsalPage(Schema):
    rehearsals: list[StoredRehearsal]
    next_cursor: NextCursor


class Residual(Schema):
    """Predicted and observed bytes; the residual is observed minus predicted if both are known."""

    predicted_bytes: Bytes | None
    observed_bytes: Bytes | None
    residual_bytes: int | None


class ComponentResidual(Residual):
    component: str
    reason: str | None


class LevelResidual(Residual):
    level: str
    low_bytes: Bytes | None
    high_bytes: Bytes | None
    is_within: bool | None


class PhaseResidual(Residual):
    phase: str
    reason: str | None


class Components(Schema):
    """Predicted and observed memory of a run; null for a side that has no value."""

    run_id: RunId
    rank: int
    device: DeviceId | None
    step: Step | None
    method: str | None
    components: list[ComponentResidual]
    peak: Residual
    levels: list[LevelResidual]
    phases: list[PhaseResidual]


class PhasePeak(Schema):
    phase: str
    peak_bytes: Bytes


class Estimate(Schema):
    """A training step by formula. The verdict's fields are null without a limit."""

    method: str
    peak_allocated_bytes: Bytes
    peak_reserved_bytes: Bytes | None
    peak_device_bytes: Bytes | None
    intervals: dict[str, tuple[Bytes, Bytes]]
    limit_bytes: Bytes | None
    verdict: FitVerdict | None
    fits: bool | None
    margin_bytes: int | None
    fit_probability: Ratio | None
    components: dict[str, Bytes]
    phases: dict[str, Bytes]
    timeline: list[PhasePeak]
    terms: dict[str, Bytes]
    assumptions: JsonObject
    advice: list[AdviceItem]
    parameters: int
    largest_batch: int | None


class CudaContext(Schema):
    """GPU memory of a process outside of tensors, over `runs` measurements."""

    gpu: str
    driver: str
    torch: str
    runs: Annotated[int, Meta(ge=1)]
    newest_bytes: Bytes
    low_bytes: Bytes
    high_bytes: Bytes
    updated_at: Timestamp


class ContextPage(Schema):
    contexts: list[CudaContext]
    next_cursor: NextCursor
