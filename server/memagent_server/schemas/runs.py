"""Runs, their streams, events and series, and comparisons of runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from memagent.forecast.predecessor import Predecessor
from memagent_server.schemas.alerts import Alert
from memagent_server.schemas.base import (
    Bytes,
    DeviceId,
    JsonObject,
    NextCursor,
    RunId,
    RunStatus,
    Schema,
    Step,
    Timestamp,
)
from memagent_server.schemas.predictions import Components, ForecastSummary


class RunStarted(Schema):
    """`next_seq` is the first batch of this rank and attempt that the server lacks.

    `predecessor` is the last run of the same program that has ended.
    """

    run_id: RunId
    url: str
    next_seq: int
    predecessor: Predecessor | None


class RunEnded(Schema):
    """The run's status. A run ends with the last of its ranks."""

    run_id: RunId
    status: RunStatus


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
    failure: Annotated[
        str | None, Meta(description="Fingerprint of how it failed, which runs may share.")
    ]
    url: str


class ListedRun(RunSummary):
    """A run in a list of runs."""

    columns: Annotated[
        JsonObject,
        Meta(
            description="{name: value} of the chosen columns; null if the run has none.",
            examples=[{"config.lr": 0.001}],
        ),
    ]


class ChangedRuns(Schema):
    """The number of runs that a request has changed."""

    runs: int


class RunPage(Schema):
    """A page of runs."""

    runs: list[ListedRun]
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


FailureState = Literal["open", "resolved", "regressed"]


class Failure(Schema):
    """A failure that runs of a project share: the same cause, line and phase, or the same error."""

    id: Annotated[str, Meta(description="The fingerprint: `failure` of its runs.")]
    project: str
    title: str
    state: Annotated[
        FailureState,
        Meta(description="`regressed`: a launch that began after the resolution ended by it."),
    ]
    runs: int
    users: int
    first_seen_at: Timestamp
    last_seen_at: Timestamp
    resolved_at: Timestamp | None
    resolved_by: str | None


class Failures(Schema):
    """The failures that were seen last."""

    failures: list[Failure]


class RunEvent(Schema):
    """Something that happened once. `data` is what the agent sent with it."""

    kind: str
    rank: int
    step: Step
    at: Timestamp
    data: JsonObject


class OutputLine(Schema):
    """A line that a rank has printed. Numbers with gaps: lines between were left out."""

    number: int
    text: str
    stream: Literal["stdout", "stderr"]
    step: Step
    at: Timestamp


class Console(Schema):
    """The last 64 KiB that a rank of the newest launch has printed; `ranks` have printed."""

    run_id: RunId
    rank: int
    ranks: list[int]
    lines: list[OutputLine]


class RunCommand(Schema):
    """A request to a running script. `state`: requested, delivered, done or failed."""

    id: int
    command: str
    state: str
    by: str | None
    at: Timestamp
    text: str


class RunCommands(Schema):
    """The newest requests to a run, the newest first."""

    commands: list[RunCommand]


class PublicLink(Schema):
    """The address of a page of the run that anyone may read, and of its chart for other pages."""

    url: str
    embed_url: Annotated[str, Meta(description="For the `src` of an `iframe`.")]
    created_at: Timestamp
    created_by: str | None
    expires_at: Timestamp | None


class EventPage(Schema):
    """A page of a run's events, the newest first."""

    run_id: RunId
    events: list[RunEvent]
    next_cursor: NextCursor


class ResourceUse(Schema):
    """GPU time and energy of all launches of a run, and what the time costs; null if unknown."""

    gpu_hours: Annotated[float | None, Meta(description="A GPU of several ranks counts once.")]
    energy_kwh: float | None
    cost: Annotated[float | None, Meta(description="Null unless all GPUs have a price.")]
    currency: str | None


class RunDetail(RunSummary):
    """A run with its settings, streams and newest 200 events."""

    config: JsonObject
    environment: JsonObject
    error: str | None
    notes: Annotated[str, Meta(description="Markdown.")]
    resources: ResourceUse
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


WasteKey = Literal["user", "project", "card", "run"]
WasteSort = Literal[
    "unused_gib_hours",
    "needed_gib_hours",
    "available_gib_hours",
    "too_large_gpu_hours",
    "gpu_hours",
    "cost",
]


class WasteSums(Schema):
    """GPU memory of runs over a time. A GiB-hour is 1 GiB of a GPU for an hour."""

    runs: int
    gpu_hours: float
    available_gib_hours: float
    needed_gib_hours: Annotated[
        float, Meta(description="If each run had needed its peak all along.")
    ]
    unused_gib_hours: Annotated[float, Meta(description="Above the peak of all processes.")]
    too_large_gpu_hours: Annotated[
        float, Meta(description="Of runs for which a smaller card would have done.")
    ]
    cost: Annotated[float | None, Meta(description="Null unless all GPUs have a price.")]
    peak_bytes: Annotated[Bytes, Meta(description="The highest need of a GPU.")]
    smallest_card: Annotated[
        str | None,
        Meta(description="Has room for that need and the margin; null if none is smaller."),
    ]


class WasteRow(WasteSums):
    """Sums over the runs of the same keys. A key that `by` doesn't name is null."""

    user: str | None = None
    project: str | None = None
    card: str | None = None
    run: str | None = None
    run_name: str | None = None


class Waste(Schema):
    """Sums over the part of runs between `since` and `until`, the largest rows first."""

    since: Timestamp
    until: Timestamp
    project: str | None
    by: list[WasteKey]
    margin: Annotated[float, Meta(description="Added to a need before cards are compared.")]
    currency: str | None
    total: WasteSums
    rows: list[WasteRow]
    left_out: Annotated[int, Meta(description="Rows beyond `limit`.")]
