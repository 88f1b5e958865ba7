"""What may be asked for in the query of a route. A field with a default may be left out."""

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from memagent.wire.messages import Identifier
from memagent_server.schemas.alerts import AlertFacts, NotificationFacts, RunFacts
from memagent_server.schemas.common import AlertState, NotificationState, RunStatus
from memagent_server.schemas.runs import RunSummary

if TYPE_CHECKING:
    RunField = str
    RunSummaryField = str
    AlertField = str
    NotificationField = str
else:
    RunField = Literal[tuple(RunFacts.__annotations__)]
    RunSummaryField = Literal[tuple(RunSummary.__annotations__)]
    AlertField = Literal[tuple(AlertFacts.__annotations__)]
    NotificationField = Literal[tuple(NotificationFacts.__annotations__)]

_ONLY = "Only these fields, separated by commas, and `id`; all of them where it is left out."
_NO_NUL = r"^[^\x00]*$"
Project = Annotated[
    str, Meta(max_length=1000, pattern=_NO_NUL, description="Of this project only.")
]
OfRun = Annotated[str, Meta(max_length=1000, pattern=_NO_NUL, description="Of this run only.")]
Column = Annotated[str, Meta(pattern=r"^[^,\s\x00][^,\x00]{0,127}$", examples=["allocated_bytes"])]
Cursor = Annotated[
    str,
    Meta(
        max_length=1000, pattern=_NO_NUL, description="What the page before gave as `next_cursor`."
    ),
]
Rank = Annotated[int, Meta(ge=0, le=2**31 - 1)]
AtStep = Annotated[int, Meta(ge=0, le=2**62)]


class Query(msgspec.Struct, kw_only=True, frozen=True):
    """A query without parameters."""


class Paged(Query, kw_only=True, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=200, description="Most of them in one answer.")] = 50
    cursor: Cursor | None = None


class RunsQuery(Paged, kw_only=True, frozen=True):
    project: Project | None = None
    status: RunStatus | None = None
    q: (
        Annotated[
            str,
            Meta(
                max_length=1000,
                pattern=_NO_NUL,
                description="In name, id, project, user, host or tags, in any case.",
            ),
        ]
        | None
    ) = None
    tag: (
        Annotated[
            str, Meta(max_length=1000, pattern=_NO_NUL, description="With this tag, a whole one.")
        ]
        | None
    ) = None
    archived: Annotated[
        Literal["0", "1"], Meta(description="`1`: those that people put away, and only those.")
    ] = "0"
    sort: Literal["-created_at", "created_at", "name", "-name", "-peak_ratio", "peak_ratio"] = (
        "-created_at"
    )
    fields: Annotated[tuple[RunSummaryField, ...], Meta(description=_ONLY)] | None = None


class EventsQuery(Paged, kw_only=True, frozen=True):
    kind: (
        Annotated[
            str,
            Meta(max_length=1000, pattern=_NO_NUL, description="Of this kind only, such as `oom`."),
        ]
        | None
    ) = None


class ForecastQuery(Query, kw_only=True, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=500, description="Most changes in `history`.")] = 500
    cursor: Cursor | None = None


class RunFieldsQuery(Query, kw_only=True, frozen=True):
    fields: Annotated[tuple[RunField, ...], Meta(description=_ONLY)] | None = None


class SeriesQuery(Query, kw_only=True, frozen=True, rename={"first": "from", "last": "to"}):
    fields: Annotated[
        tuple[Column, ...],
        Meta(
            min_length=1,
            max_length=100,
            description="Columns, separated by commas; `*` is all of them.",
        ),
    ] = ("allocated_bytes", "peak_allocated_bytes", "device_used_bytes")
    rank: Rank = 0
    device: (
        Annotated[
            str,
            Meta(
                max_length=1000,
                pattern=_NO_NUL,
                description="A device's id, or `scalars`; the rank's first device where it is left out.",
            ),
        ]
        | None
    ) = None
    attempt: (
        Annotated[
            int,
            Meta(ge=0, le=2**53, description="A launch; the rank's newest where it is left out."),
        ]
        | None
    ) = None
    first: Annotated[int, Meta(ge=0, le=2**62, description="First step.")] | None = None
    last: Annotated[int, Meta(ge=0, le=2**62, description="Last step.")] | None = None
    points: Annotated[
        int,
        Meta(
            ge=10,
            le=10_000,
            description="Most points; minimum and maximum of what they stand for are kept.",
        ),
    ] = 1000


class RanksQuery(Query, kw_only=True, frozen=True, rename={"first": "from", "last": "to"}):
    field: Annotated[str, Meta(max_length=1000, pattern=_NO_NUL, description="A column.")] = (
        "peak_allocated_bytes"
    )
    first: Annotated[int, Meta(ge=0, le=2**62, description="First step.")] | None = None
    last: Annotated[int, Meta(ge=0, le=2**62, description="Last step.")] | None = None
    points: Annotated[int, Meta(ge=10, le=1000, description="Most stretches.")] = 60


class ExportQuery(Query, kw_only=True, frozen=True):
    format: Literal["csv", "parquet"] = "csv"


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
            Meta(description="Without it, all but those that were never confirmed (`ok`)."),
        ]
        | None
    ) = None
    run: OfRun | None = None
    fields: Annotated[tuple[AlertField, ...], Meta(description=_ONLY)] | None = None


class NotificationsQuery(Paged, kw_only=True, frozen=True):
    state: NotificationState | None = None
    channel: (
        Annotated[str, Meta(max_length=1000, pattern=_NO_NUL, description="To this channel only.")]
        | None
    ) = None
    run: OfRun | None = None
    fields: Annotated[tuple[NotificationField, ...], Meta(description=_ONLY)] | None = None


class RulesQuery(Query, kw_only=True, frozen=True):
    project: Annotated[
        str,
        Meta(
            max_length=200,
            pattern=_NO_NUL,
            description="A project; `*` is every project that has no rules of its own.",
        ),
    ] = "*"


class ScoreboardQuery(Query, kw_only=True, frozen=True):
    days: Annotated[int, Meta(ge=1, le=3650, description="How far to look back.")] = 90
    project: Project | None = None
