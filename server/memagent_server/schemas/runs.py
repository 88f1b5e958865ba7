"""Runs and everything that belongs to one."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from memagent.forecast.types import Level
from memagent.wire.messages import AdviceItem
from memagent_server.schemas.alerts import Alert
from memagent_server.schemas.base import (
    Bytes,
    DeviceId,
    JsonObject,
    NextCursor,
    Ratio,
    RunId,
    RunStatus,
    Schema,
    Step,
    Timestamp,
)


class RunStarted(Schema):
    """`next_seq` is the first batch of this rank and attempt that the server lacks."""

    run_id: RunId
    url: str
    next_seq: int


class RunEnded(Schema):
    """The run's status. A run ends with the last of its ranks."""

    run_id: RunId
    status: RunStatus


class ForecastSummary(Schema):
    """The worst of the newest forecasts of a run's streams."""

    level: Level
    oom_probability: Ratio
    cause: str | None
    eta_step: float | None


class RunSummary(Schema):
    """A run in a list. Memory is that of the newest launch's stream that is nearest to its limit;
    null before its first sample.
    """

    id: RunId
    project: str
    name: str
    user: str | None
    host: str | None
    status: RunStatus
    created_at: Timestamp
    started_at: Timestamp | None
    last_seen_at: Timestamp
    finished_at: Timestamp | None
    step: Step
    total_steps: int | None
    world_size: int
    tags: list[str]
    is_archived: bool
    device: DeviceId | None
    device_name: str | None
    used_bytes: Bytes | None
    peak_bytes: Bytes | None
    limit_bytes: Bytes | None
    sparkline: Annotated[
        list[Bytes | None] | None, Meta(description="Peaks over the run, in at most 32 values.")
    ]
    predicted_peak_bytes: Bytes | None
    forecast: ForecastSummary | None
    url: str


class RunPage(Schema):
    """A page of runs."""

    runs: list[RunSummary]
    next_cursor: NextCursor


class Stream(Schema):
    """Samples of one rank and device in one launch. `latest` has each field's newest value."""

    rank: int
    attempt: int
    device: DeviceId
    kind: str
    name: str
    limit_bytes: Bytes | None
    limit_source: str | None
    first_step: Step | None
    last_step: Step | None
    samples: int
    peak_bytes: Bytes | None
    is_current: bool
    last_sample_at: Timestamp | None
    latest: dict[str, float | None]


class RunEvent(Schema):
    """Something that happened once. `data` is what the agent sent with it."""

    kind: str
    rank: int
    step: Step
    at: Timestamp
    data: JsonObject


class EventPage(Schema):
    """A page of a run's events, the newest first."""

    run_id: RunId
    events: list[RunEvent]
    next_cursor: NextCursor


class RunDetail(RunSummary):
    """A run with its settings, streams and newest 200 events."""

    config: JsonObject
    environment: JsonObject
    error: str | None
    dropped_samples: dict[str, int]
    streams: list[Stream]
    events: list[RunEvent]


class Run(RunDetail):
    """Everything about a run but its samples: the newest 200 events, the newest 50 alerts."""

    alerts: list[Alert]


class Statistics(Schema):
    """A field's minimum, maximum and last value in each bucket; null if a bucket has no value."""

    min: list[float | None]
    max: list[float | None]
    last: list[float | None]


class Series(Schema):
    """Samples for a chart. `step` and `time_s` are those of each bucket's last sample."""

    run_id: RunId
    rank: int
    device: DeviceId | None
    attempt: int | None
    samples: int
    bucketed: bool
    step: list[int | None]
    time_s: list[float | None]
    series: dict[str, Statistics]


class RankRow(Schema):
    """One rank of a grid; `max` holds the maximum in each interval of steps."""

    rank: int
    device: DeviceId
    device_name: str
    limit_bytes: Bytes | None
    max: list[float | None]


class RankGrid(Schema, rename={"first": "from", "last": "to"}):
    """A field's maxima of all ranks over the same step intervals, with the intervals' ends."""

    run_id: RunId
    field: str
    first: Step | None
    last: Step | None
    step: list[int | None]
    time_s: list[float | None]
    ranks: list[RankRow]
    left_out: Annotated[int, Meta(description="Devices beyond the first 256.")]


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


class SuspectLine(Schema):
    """A line suspected of growth, and the object that it makes grow."""

    kind: str
    holder: str
    file: str
    line: int
    function: str | None
    bytes_per_step: float | None
    confidence: Ratio
    fix: str


class SuspectByRank(SuspectLine):
    """A suspect of the newest snapshots; `ranks` are those that reported it."""

    ranks: list[int]
    step: Step
    snapshot: Annotated[
        int | None, Meta(description="Null if only the event of an OOM names the suspect.")
    ]


class Suspects(Schema):
    run_id: RunId
    suspects: list[SuspectByRank]


class Snapshot(Schema):
    """The holders of the memory of one rank and device."""

    id: int
    at: Timestamp
    rank: int
    attempt: int
    seq: int
    device: DeviceId
    step: Step
    method: str
    why: str
    suspects: list[SuspectLine]
    notes: list[str]
    has_stacks: bool
    has_viewer: bool


class SnapshotPage(Schema):
    """A page of a run's snapshots, the newest first."""

    run_id: RunId
    snapshots: list[Snapshot]
    next_cursor: NextCursor


class SnapshotDetail(Snapshot):
    """A snapshot with its stacks and tensors."""

    stacks: list[JsonObject]
    tensors: list[JsonObject]


class ComparedRun(RunSummary):
    """A run in a comparison. Rank, steps, headroom (limit minus peak) and residual are of the
    stream that is nearest to its limit.
    """

    rank: int | None
    attempt: int | None
    first_step: Step | None
    last_step: Step | None
    headroom_bytes: int | None
    residual_bytes: int | None
    step_s: Annotated[float | None, Meta(description="Median seconds of a step.")]
    scalars: list[str]
    tokens_scalar: Annotated[
        str | None, Meta(description="The one of `scalars` that counts tokens.")
    ]
    config: JsonObject
    components: Components | None


class Comparison(Schema):
    """Runs in the order of the request. Differences are {key: [value per run]}."""

    runs: list[ComparedRun]
    config_differences: dict[str, list[Any]]
    environment_differences: dict[str, list[Any]]


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
