"""Pieces that many shapes share."""

from typing import Annotated, Any, Literal

from msgspec import Meta
from typing_extensions import NotRequired, TypedDict

RunId = Annotated[str, Meta(description="The run's id, as its agent chose it.", examples=["k3v9"])]
When = Annotated[
    str,
    Meta(
        description="UTC, ISO 8601.",
        examples=["2026-01-01T00:00:00.000Z"],
        extra_json_schema={"format": "date-time"},
    ),
]
Bytes = Annotated[int, Meta(description="Bytes.", examples=[2147483648])]
Step = Annotated[int, Meta(description="Optimizer steps finished.", examples=[120])]
DeviceId = Annotated[
    str, Meta(description="A GPU's UUID, `host`, or `scalars`.", examples=["host"])
]
NextCursor = Annotated[
    str | None,
    Meta(
        description="What to give as `cursor` for the next page; null on the last one.",
        examples=[None],
    ),
]
Ratio = Annotated[float, Meta(ge=0, le=1)]

RunStatus = Literal["running", "completed", "failed", "oom", "lost_contact"]
Level = Literal["ok", "notice", "warning", "critical"]
AlertState = Literal["pending", "firing", "averted", "finished", "oom", "lost_contact", "ok"]
Severity = Literal["note", "warning", "critical"]
NotificationState = Literal["waiting", "leased", "sent", "dead", "skipped"]


class Problem(TypedDict):
    """What went wrong and what to do (RFC 9457). `field` names the field or parameter at fault."""

    type: str
    title: Annotated[str, Meta(examples=["Unprocessable Content"])]
    status: Annotated[int, Meta(ge=400, le=599, examples=[422])]
    detail: Annotated[str, Meta(examples=["limit: '0' is no whole number from 1 to 200"])]
    field: NotRequired[Annotated[str, Meta(examples=["limit"])]]
    request_id: NotRequired[
        Annotated[str, Meta(description="As in the header X-Request-ID and in the server's log.")]
    ]


class Created(TypedDict):
    """What was posted is stored for good."""

    id: int


class Health(TypedDict):
    status: Literal["ok"]
    version: str


class Ready(TypedDict):
    status: Literal["ready"]
    workers: Annotated[int, Meta(ge=0, description="How many spoke within the last minute.")]


JsonObject = dict[str, Any]
