"""Runs, and what is asked of one."""

from typing import Annotated, Any

from msgspec import Meta
from typing_extensions import Required, TypedDict

from memagent.wire.messages import AdviceItem, BatchReply
from memagent_server.schemas.common import (
    Bytes,
    DeviceId,
    JsonObject,
    Level,
    NextCursor,
    Ratio,
    RunId,
    RunStatus,
    Step,
    When,
)

__all__ = ["BatchReply"]


class RunStarted(TypedDict):
    """`next_seq` is the first batch that the server lacks of this rank and attempt."""

    run_id: RunId
    url: str
    next_seq: int


class RunEnded(TypedDict):
    """The status of the run, which ends with the last of its ranks."""

    run_id: RunId
    status: RunStatus


class ForecastSummary(TypedDict):
    """The worst of the newest forecasts of a run's streams."""

    level: Level
    oom_probability: Ratio
    cause: str | None
    eta_step: float | None


class RunSummary(TypedDict, total=False):
    """A run in a list. Memory is that of the stream of the newest launch that is nearest to its limit; null before its first sample."""

    id: Required[RunId]
    project: str
    name: str
    user: str | None
    host: str | None
    status: RunStatus
    created_at: When
    started_at: When | None
    last_seen_at: When
    finished_at: When | None
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
        list[Bytes | None] | None, Meta(description="The course of its peaks in a few figures.")
    ]
    predicted_peak_bytes: Bytes | None
    forecast: ForecastSummary | None
    url: str


class RunPage(TypedDict):
    """A page of runs."""

    runs: list[RunSummary]
    next_cursor: NextCursor


class StreamFacts(TypedDict):
    """The samples of one rank and device in one launch. `latest` is the newest known value of each field."""

    rank: int
    attempt: int
    is_current: bool
    device: DeviceId
    kind: str
    name: str
    limit_bytes: Bytes | None
    limit_source: str | None
    first_step: Step | None
    last_step: Step | None
    samples: int
    peak_bytes: Bytes | None
    last_sample_at: When | None
    latest: dict[str, float | None]


class EventFacts(TypedDict):
    """Something that happened once. `data` is what the agent said of it."""

    kind: str
    rank: int
    step: Step
    at: When
    data: JsonObject


class EventPage(TypedDict):
    """A page of a run's events, the newest first."""

    run_id: RunId
    events: list[EventFacts]
    next_cursor: NextCursor


class Statistics(TypedDict):
    """A field's minimum, maximum and last value in each bucket; null where there is none."""

    min: list[float | None]
    max: list[float | None]
    last: list[float | None]


class Series(TypedDict):
    """Samples for a chart. `step` and `time_s` are those of each bucket's last sample; `samples` is how many the window holds."""

    run_id: RunId
    rank: int
    device: DeviceId | None
    attempt: int | None
    samples: int
    bucketed: bool
    step: list[int | None]
    time_s: list[float | None]
    series: dict[str, Statistics]


class RankRow(TypedDict):
    """One rank of a grid; `max` is the most within each stretch."""

    rank: int
    device: DeviceId
    device_name: str
    limit_bytes: Bytes | None
    max: list[float | None]


RankGrid = TypedDict(
    "RankGrid",
    {
        "run_id": RunId,
        "field": str,
        "from": Step | None,
        "to": Step | None,
        "step": list[int | None],
        "time_s": list[float | None],
        "left_out": Annotated[int, Meta(description="Devices beyond the first 256.")],
        "ranks": list[RankRow],
    },
)


class ForecastFacts(TypedDict):
    """What the forecaster said of a stream after `step`. Steps are numbers of the run's own steps; seconds count from the forecast."""

    rank: int
    attempt: int
    device: DeviceId
    at: When
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


class Forecasts(TypedDict):
    """The newest forecast of each stream; of all changes the last, the oldest first; `next_cursor` leads to the changes before these."""

    run_id: RunId
    forecasts: list[ForecastFacts]
    history: list[ForecastFacts]
    next_cursor: NextCursor


class PredictionFacts(TypedDict):
    """An estimator's answer for one rank and device."""

    id: int
    created_at: When
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


class PredictionPage(TypedDict):
    """A page of a run's predictions, the newest first."""

    run_id: RunId
    predictions: list[PredictionFacts]
    next_cursor: NextCursor


class Figures(TypedDict):
    """Both sides, and observed minus predicted where both are known."""

    predicted_bytes: Bytes | None
    observed_bytes: Bytes | None
    residual_bytes: int | None


class ComponentFigures(Figures):
    component: str
    reason: str | None


class LevelFigures(Figures):
    level: str
    low_bytes: Bytes | None
    high_bytes: Bytes | None
    is_within: bool | None


class PhaseFigures(Figures):
    phase: str
    reason: str | None


class Components(TypedDict):
    """Predicted beside observed. What only one side knows is null on the other."""

    run_id: RunId
    rank: int
    device: DeviceId | None
    step: Step | None
    method: str | None
    components: list[ComponentFigures]
    peak: Figures
    levels: list[LevelFigures]
    phases: list[PhaseFigures]


class SuspectFacts(TypedDict):
    """A line that is blamed for growth, and what it makes grow."""

    kind: str
    holder: str
    file: str
    line: int
    function: str | None
    bytes_per_step: float | None
    confidence: Ratio
    fix: str


class SuspectByRank(SuspectFacts):
    """A suspect of the newest snapshots: `ranks` are those on which it is blamed."""

    ranks: list[int]
    step: Step
    snapshot: Annotated[
        int | None, Meta(description="Null where only the last words of a death tell of it.")
    ]


class Suspects(TypedDict):
    run_id: RunId
    suspects: list[SuspectByRank]


class SnapshotFacts(TypedDict):
    """Who held the memory of one rank and device."""

    id: int
    at: When
    rank: int
    attempt: int
    seq: int
    device: DeviceId
    step: Step
    method: str
    why: str
    suspects: list[SuspectFacts]
    notes: list[str]
    has_stacks: bool
    has_viewer: bool


class SnapshotPage(TypedDict):
    """A page of a run's snapshots, the newest first."""

    run_id: RunId
    snapshots: list[SnapshotFacts]
    next_cursor: NextCursor


class WholeSnapshot(SnapshotFacts):
    """A snapshot with what is large of it."""

    stacks: list[JsonObject]
    tensors: list[JsonObject]


class ComparedRun(RunSummary):
    """A run beside others. Rank, steps, headroom (limit minus peak) and residual are of the stream that is nearest to its limit."""

    config: JsonObject
    components: Components | None
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


class Comparison(TypedDict):
    """Runs in the order asked for; of what differs in their settings and surroundings {key: [value per run]}, null where a run lacks it."""

    runs: list[ComparedRun]
    config_differences: dict[str, list[Any]]
    environment_differences: dict[str, list[Any]]


class PhasePeak(TypedDict):
    phase: str
    peak_bytes: Bytes


class Estimate(TypedDict):
    """A training step by formula. `fits`, `fit_probability` and `largest_batch` are null without a limit."""

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


class ContextFacts(TypedDict):
    """What processes held on a GPU apart from tensors, over `runs` measurements."""

    gpu: str
    driver: str
    torch: str
    runs: Annotated[int, Meta(ge=1)]
    newest_bytes: Bytes
    low_bytes: Bytes
    high_bytes: Bytes
    updated_at: When


class ContextPage(TypedDict):
    contexts: list[ContextFacts]
    next_cursor: NextCursor
