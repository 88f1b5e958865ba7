"""Schedules of channels: quiet hours, a digest a day, and a report of unused memory a week."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from memagent_server.schemas.base import Schema, Timestamp
from memagent_server.schemas.routing import Patterns

Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
WEEKDAYS: tuple[Weekday, ...] = get_args(Weekday)
DigestKind = Literal["daily", "waste"]
ClockTime = Annotated[
    str, Meta(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$", examples=["08:00"], max_length=5)
]


class ChannelSchedule(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """When a channel is quiet, and which digests it gets.

    - quiet_from, quiet_to: between them only critical notifications are sent; on quiet_days, too.
    - digest_at: time of both digests, `waste_day` the day of the one about unused memory.
    - projects: of the digests; without any, those of the routes that name the channel.
    """

    time_zone: Annotated[str, Meta(min_length=1, max_length=60, examples=["Europe/Berlin"])] = "UTC"
    quiet_from: ClockTime | None = None
    quiet_to: ClockTime | None = None
    quiet_days: Annotated[tuple[Weekday, ...], Meta(max_length=7, examples=[["sunday"]])] = ()
    digest_at: ClockTime = "08:00"
    daily: bool = False
    waste_day: Weekday | None = None
    projects: Patterns = ()


class ScheduleChanges(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """New schedules by channel. null removes one; channels that aren't named keep theirs."""

    schedules: dict[Annotated[str, Meta(max_length=40)], ChannelSchedule | None]


class Digest(Schema):
    """The state of a channel's digest: when it was sent, and why its last attempt failed."""

    channel: str
    kind: DigestKind
    sent_at: Timestamp | None
    last_error: str | None


class Schedules(Schema):
    """All schedules by channel, their digests, and the notifications that wait for a morning."""

    schedules: dict[str, ChannelSchedule]
    digests: list[Digest]
    waiting: dict[str, int]
