"""Query parameters of the API's routes. A field with a default is optional."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from memagent.filters.parser import MAX_LENGTH
from memagent.wire.messages import Identifier
from memagent_server.schemas.alerts import Alert, Notification
from memagent_server.schemas.base import AlertState, NotificationState, RunStatus, Schema
from memagent_server.schemas.runs import FailureState, ListedRun, Run, WasteKey, WasteSort

MAX_RUNS = 200
"""Runs that one request changes."""
PARTIAL: tuple[type[Schema], ...] = (Run, ListedRun, Alert, Notification)
"""Answers whose fields a query can choose with `fields`; `id` is always there."""

if TYPE_CHECKING:
    RunField = str
    RunSummaryField = str
    AlertField = str
    NotificationField = str
else:
    RunField, RunSummaryField, AlertField, NotificationField = (
        Literal[kind.__struct_fields__] for kind in PARTIAL
    )

_FIELDS = Meta(description="Only these fields, separated by commas, and `id`; default: all.")


def _text(description: str, max_length: int = 1000) -> Meta:
    return Meta(max_length=max_length, pattern=r"^[^\x00]*$", description=description)


Project = Annotated[str, _text("Only this project.")]
OfRun = Annotated[str, _text("Only this run.")]
ColumnName = Annotated[
    str,
    Meta(
        title="a column's name of at most 128 characters",
        pattern=r"^[^,\s\x00][^,\x00]{0,127}$",
        examples=["allocated_bytes"],
    ),
]
Cursor = Annotated[str, _text("`next_cursor` of the previous page.")]
Limit = Annotated[int, Meta(ge=1, le=200, description="Maximum per page.")]
FirstStep = Annotated[int, Meta(ge=0, le=2**62, description="First step.")]
LastStep = Annotated[int, Meta(ge=0, le=2**62, description="Last step.")]


class Query(msgspec.Struct, kw_only=True, frozen=True):
    """A query without parameters."""


class Paged(Query, kw_only=True, frozen=True):
    limit: Limit = 50
    cursor: Cursor | None = None


class RunFilters(Query, kw_only=True, frozen=True):
    """Parameters that choose runs."""

    project: Project | None = None
    status: RunStatus | None = None
    q: (
        Annotated[str, _text("Words in name, id, project, user, host, tags; or `key=value`.")]
        | None
    ) = None
    tag: Annotated[str, _text("Only runs with exactly this tag.")] | None = None
    where: (
        Annotated[
            str, _text("A filter, such as `config.lr < 1e-3 and peak_ratio > 0.9`.", MAX_LENGTH)
        ]
        | None
    ) = None
    archived: Annotated[Literal["0", "1"], Meta(description="`1`: only archived runs.")] = "0"


class RunsQuery(RunFilters, kw_only=True, frozen=True):
    limit: Limit = 50
    cursor: Cursor | None = None
    sort: Annotated[str, _text("A column, as in `where`; after `-`, the highest come first.")] = (
        "-created_at"
    )
    columns: (
        Annotated[
            str, _text("Columns as in `where`, separated by commas; `differing`: settings that do.")
        ]
        | None
    ) = None
    fields: Annotated[tuple[RunSummaryField, ...], _FIELDS] | None = None


class GroupsQuery(RunFilters, kw_only=True, frozen=True):
    by: Annotated[str, _text("1 to 3 columns, as in `where`, separated by commas.")]
    columns: (
        Annotated[str, _text("Columns whose minimum, mean and maximum are returned.")] | None
    ) = None
    sort: Annotated[
        str, _text("`runs`, `value` or one of `columns`; after `-`, the highest come first.")
    ] = "-runs"
    limit: Annotated[int, Meta(ge=1, le=200, description="Maximum on each level.")] = 50


class RehearsalsQuery(Paged, kw_only=True, frozen=True):
    project: Project | None = None


class EventsQuery(Paged, kw_only=True, frozen=True):
    kind: Annotated[str, _text("Only this kind, such as `oom`.")] | None = None


class ConsoleQuery(Query, kw_only=True, frozen=True):
    rank: (
        Annotated[
            int,
            Meta(
                ge=0, le=2**31 - 1, description="Default: the first that died, else that has lines."
            ),
        ]
        | None
    ) = None
    last: Annotated[int, Meta(ge=1, le=10_000, description="Only the last lines.")] | None = None


class ForecastQuery(Query, kw_only=True, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=500, description="Maximum of changes in `history`.")] = 500
    cursor: Cursor | None = None


class RunFieldsQuery(Query, kw_only=True, frozen=True):
    fields: Annotated[tuple[RunField, ...], _FIELDS] | None = None


class SeriesQuery(Query, kw_only=True, frozen=True, rename={"first": "from", "last": "to"}):
    fields: Annotated[
        tuple[ColumnName, ...],
        Meta(max_length=100, description="Columns, separated by commas; `*` for all."),
    ] = ("allocated_bytes", "peak_allocated_bytes", "device_used_bytes")
    rank: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    device: (
        Annotated[str, _text("A device's id, or `scalars`; default: the rank's first device.")]
        | None
    ) = None
    attempt: (
        Annotated[
            int, Meta(ge=0, le=2**53, description="A launch; default: the rank's newest one.")
        ]
        | None
    ) = None
    first: FirstStep | None = None
    last: LastStep | None = None
    points: Annotated[
        int,
        Meta(
            ge=10,
            le=10_000,
            description="Maximum of points. Each keeps the minimum and maximum of its samples.",
        ),
    ] = 1000


class RanksQuery(Query, kw_only=True, frozen=True, rename={"first": "from", "last": "to"}):
    field: Annotated[
        str,
        Meta(
            title="one column's name of at most 128 characters",
            max_length=128,
            pattern=r"^(?!\*$)[^\x00]*$",
            description="A column.",
        ),
    ] = "peak_allocated_bytes"
    first: FirstStep | None = None
    last: LastStep | None = None
    points: Annotated[int, Meta(ge=10, le=1000, description="Maximum of intervals.")] = 60


class SamplesQuery(Query, kw_only=True, frozen=True, rename={"first": "from", "last": "to"}):
    stream: Annotated[
        Literal["devices", "scalars"], Meta(description="Readings of devices, or logged scalars.")
    ] = "devices"
    ranks: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=2**31 - 1)], ...],
        Meta(max_length=1000, description="Ranks, separated by commas; default: all."),
    ] = ()
    first: FirstStep | None = None
    last: LastStep | None = None
    codec: Annotated[
        Literal["zstd", "zlib"], Meta(description="`zlib` for readers without zstd.")
    ] = "zstd"


class ExportQuery(Query, kw_only=True, frozen=True):
    format: Literal["csv", "parquet"] = "csv"


class RunsToDelete(Query, kw_only=True, frozen=True):
    runs: Annotated[
        tuple[Identifier, ...],
        Meta(min_length=1, max_length=MAX_RUNS, description="Ids, separated by commas."),
    ]


class ViewsQuery(Query, kw_only=True, frozen=True):
    project: (
        Annotated[str, _text("Views of this project and of all; default: all views.")] | None
    ) = None


class ViewQuery(Query, kw_only=True, frozen=True):
    name: Annotated[str, _text("The view's name."), Meta(min_length=1)]
    project: Annotated[str, _text("Its project; `*` for a view of all.")] = "*"


class CompareQuery(Query, kw_only=True, frozen=True):
    runs: Annotated[
        tuple[Identifier, ...],
        Meta(
            min_length=2,
            max_length=20,
            description="Ids of different runs, separated by commas.",
            extra_json_schema={"uniqueItems": True},
        ),
    ]


class AlertsQuery(Paged, kw_only=True, frozen=True):
    state: (
        Annotated[
            Literal["open"] | AlertState,
            Meta(description="Default: all but those that were never confirmed (`ok`)."),
        ]
        | None
    ) = None
    run: OfRun | None = None
    fields: Annotated[tuple[AlertField, ...], _FIELDS] | None = None


class NotificationsQuery(Paged, kw_only=True, frozen=True):
    state: NotificationState | None = None
    channel: Annotated[str, _text("Only to this channel.")] | None = None
    run: OfRun | None = None
    fields: Annotated[tuple[NotificationField, ...], _FIELDS] | None = None


class RulesQuery(Query, kw_only=True, frozen=True):
    project: Annotated[
        str, _text("A project; `*` for every project without rules of its own.", 200)
    ] = "*"


class PreviewQuery(Query, kw_only=True, frozen=True):
    days: Annotated[int, Meta(ge=1, le=90, description="Days to look back.")] = 7


class ScoreboardQuery(Query, kw_only=True, frozen=True):
    days: Annotated[int, Meta(ge=1, le=3650, description="Days to look back.")] = 90
    project: Project | None = None


class WasteQuery(Query, kw_only=True, frozen=True):
    days: Annotated[int, Meta(ge=1, le=3650, description="Days to look back.")] = 7
    project: Project | None = None
    by: Annotated[
        tuple[WasteKey, ...],
        Meta(min_length=1, max_length=4, description="Keys of a row, separated by commas."),
    ] = ("user", "project", "card")
    sort: Annotated[WasteSort, Meta(description="The largest come first.")] = "unused_gib_hours"
    limit: Annotated[int, Meta(ge=1, le=200, description="Maximum of rows.")] = 50


class FailuresQuery(Query, kw_only=True, frozen=True):
    project: Project | None = None
    state: FailureState | None = None
