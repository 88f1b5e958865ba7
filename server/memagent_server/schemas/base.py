"""Types that all schemas share: the base of every answer, annotated scalars, states, and the
answers about the server itself.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

RunId = Annotated[str, Meta(description="The run's id, chosen by its agent.", examples=["k3v9"])]
Timestamp = Annotated[
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
    Meta(description="Value of `cursor` for the next page; null on the last one.", examples=[None]),
]
Ratio = Annotated[float, Meta(ge=0, le=1)]
JsonObject = dict[str, Any]

RunStatus = Literal["running", "completed", "stopped", "failed", "oom", "lost_contact"]
RUN_STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)
AlertState = Literal["pending", "firing", "averted", "finished", "oom", "lost_contact", "ok"]
"""`ok` is an alert that was pending and never confirmed."""
ALERT_STATES: tuple[AlertState, ...] = get_args(AlertState)
NotificationState = Literal["waiting", "leased", "sent", "dead", "skipped"]
NOTIFICATION_STATES: tuple[NotificationState, ...] = get_args(NotificationState)


class Schema(msgspec.Struct):
    """Base of all answers."""


class Problem(Schema):
    """An error and what to do about it (RFC 9457). `field` names the wrong field or parameter."""

    type: str
    title: Annotated[str, Meta(examples=["Unprocessable Content"])]
    status: Annotated[int, Meta(ge=400, le=599, examples=[422])]
    detail: Annotated[str, Meta(examples=["limit: '0' is not a whole number from 1 to 200"])]
    field: Annotated[str, Meta(examples=["limit"])] | UnsetType = UNSET
    request_id: (
        Annotated[
            str, Meta(description="The same as in the header X-Request-ID and the server's log.")
        ]
        | UnsetType
    ) = UNSET


class Created(Schema):
    """The id of what was stored."""

    id: int


class Health(Schema):
    status: Literal["ok"]
    version: str


class Ready(Schema):
    status: Literal["ready"]
    workers: Annotated[int, Meta(ge=0, description="Workers that were alive within a minute.")]


class Token(Schema):
    """An access token without its hash, for the settings page and the command line."""

    id: int
    name: str
    scope: str
    projects: list[str]
    created_at: Timestamp
    expires_at: Timestamp | None
    last_used_at: Timestamp | None
    revoked_at: Timestamp | None
