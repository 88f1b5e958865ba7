"""What a channel is, and what it is told."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from memagent.wire.messages import Suspect

LONGEST_RETRY_AFTER_S = 3600.0
"""A far end that asks for more is broken, and a warning that is a day late helps nobody."""
SHORTEST_SECRET = 8
"""Shorter pieces of an address are hidden only as a part of it: they may be any word."""


@dataclass(frozen=True)
class Saving:
    """What the estimator would change in this run: bytes saved and what it costs in speed."""

    change: str
    saving_bytes: int
    cost: str


@dataclass(frozen=True)
class Curve:
    """A device's memory over steps, for a picture. The three lists are equally long; sizes are bytes, None where nothing was read."""

    steps: tuple[int, ...]
    used_bytes: tuple[int | None, ...]
    device_used_bytes: tuple[int | None, ...]


@dataclass(frozen=True)
class AlertMessage:
    """Everything a message about one transition of an alert can say. Plain values; times are seconds since the epoch."""

    alert_id: int
    transition_id: int
    topic: str
    """What this is a chapter of: messages with one topic stay in order, and channels that can edit keep one message for it."""
    dedup_key: str
    rule: str
    severity: str
    from_state: str
    to_state: str
    """A state of an alert, or `test`."""
    reason: str
    at: float
    step: int
    first_step: int
    opened_at: float
    facts: dict[str, Any]
    run_id: str
    run_name: str
    project: str
    run_url: str
    alert_url: str
    runbook_url: str = ""
    """What the rule means and what to do, on the server's own pages."""
    summary: str = ""
    host: str | None = None
    rank: int | None = None
    world_size: int = 1
    ranks: tuple[int, ...] = ()
    """All ranks that the topic is about."""
    device_name: str | None = None
    predicted_peak_bytes: int | None = None
    observed_peak_bytes: int | None = None
    checkpoint_step: int | None = None
    suspect: Suspect | None = None
    saving: Saving | None = None
    advice: tuple[Mapping[str, Any], ...] = ()
    """All that the estimator advises for this run, as the prediction has it."""
    acked_by: str | None = None
    """Who said that they have seen it; `somebody` where that is not known."""
    snoozed_until: float | None = None
    error: str | None = None
    autopsy: tuple[str, ...] = ()
    """The report of a death, a line each: what was asked for and when, what held the memory, what to change."""
    is_repeat: bool = False
    """Whether an earlier attempt was made: the far end may have this already."""
    is_overtaken: bool = False
    """Whether the channel was told a later chapter already: this one was dead, and somebody had it sent again."""
    delayed_s: float = 0.0
    """How long the message has waited to be sent."""
    curve: Curve | None = None
    receipt: dict[str, Any] = field(default_factory=dict)
    """What the channel answered to the last message on this topic."""


class DeliveryFailedError(Exception):
    """A channel did not take a message. `retry_after_s` is what it asked for; `is_final` when trying again makes no sense.

    The message never holds a secret: no token, no webhook address.
    """

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, is_final: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after_s, self.is_final = retry_after_s, is_final


class Channel:
    """A way to reach people. Each channel's module has a subclass of it and a `from_settings`."""

    secrets: tuple[str, ...] = ()
    """What must never be seen in a log, an error or an answer."""
    wants_curve = False
    """Whether stories are to bring the memory curve along, for a picture."""
    can_refresh = False
    """Whether `refresh` does anything."""

    def send(self, story: AlertMessage) -> dict[str, Any]:
        """Deliver, and return a receipt that later messages on the same topic get back. Raises DeliveryFailedError."""
        raise NotImplementedError

    def refresh(self, story: AlertMessage) -> dict[str, Any]:
        """Bring what was sent up to date without calling anybody; returns the new receipt. Raises DeliveryFailedError."""
        return story.receipt


class NotSetUp(Channel):
    """Stands for a channel that has messages waiting and is no longer in the settings."""

    def send(self, story: AlertMessage) -> dict[str, Any]:
        raise DeliveryFailedError(
            "this channel is no longer set up: set it up again, or let the message expire"
        )


def retry_after_s(headers: Mapping[str, Any]) -> float | None:
    """Seconds that an answer's Retry-After asks for, an hour at most; None without one, or for a date, which nobody sends."""
    text = next(
        (str(value) for name, value in headers.items() if name.lower() == "retry-after"), ""
    )
    try:
        seconds = float(text)
    except ValueError:
        return None
    return min(seconds, LONGEST_RETRY_AFTER_S) if math.isfinite(seconds) and seconds >= 0 else None


def parts_of_address(url: str) -> tuple[str, ...]:
    """What must be hidden of an address that is a secret: all of it, and whatever a far end might quote of it."""
    parts = urlsplit(url)
    pieces = (
        *parts.path.split("/"),
        parts.query,
        *re.split("[&=]", parts.query),
        parts.password or "",
    )
    quoted = {piece for piece in pieces if len(piece) >= SHORTEST_SECRET} | {parts.password or ""}
    return (url, *sorted(quoted | {unquote(piece) for piece in quoted}))


def mask(text: str, secrets: Collection[str]) -> str:
    """`text` with every secret in it replaced."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "[hidden]")
    return text
