"""Base class of the channels, and the message that they deliver."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import msgspec

from memagent.wire.messages import Suspect
from memagent_server.schemas.base import JsonObject

MAX_RETRY_AFTER_S = 3600.0
"""A service that asks for more is broken, and a warning that's a day late is useless."""
MAX_RECEIPT_VALUE_BYTES = 1_000
MIN_SECRET_LENGTH = 8
"""Shorter parts of an address may be ordinary words: they're masked only within the address."""

Receipt: TypeAlias = dict[str, str | int | float | bool | None]
"""A channel's own notes about a sent message, for later messages of its topic."""


@dataclass(frozen=True)
class EstimatedSaving:
    """A change that the estimator recommends: bytes it saves, and its cost in speed."""

    change: str
    saving_bytes: int
    cost: str


@dataclass(frozen=True)
class MemoryCurve:
    """Memory of a device over steps, for a chart: equally long lists of bytes, None if not read."""

    steps: tuple[int, ...]
    used_bytes: tuple[int | None, ...]
    device_used_bytes: tuple[int | None, ...]


@dataclass(frozen=True)
class AlertMessage:
    """Content of a message about one transition of an alert: plain values, times in Unix seconds.

    The fields are also the JSON of the channel `webhook`.
    """

    alert_id: int
    transition_id: int
    topic: str
    """Messages of a topic stay in order; channels that can edit keep one message per topic."""
    dedup_key: str
    rule: str
    severity: str
    from_state: str
    to_state: str
    """A state of an alert, `test` or `digest`."""
    reason: str
    at: float
    step: int
    first_step: int
    opened_at: float
    facts: JsonObject
    run_id: str
    run_name: str
    project: str
    run_url: str
    alert_url: str
    runbook_url: str = ""
    """Page of this server on the rule: what it means and what to do."""
    summary: str = ""
    host: str | None = None
    rank: int | None = None
    world_size: int = 1
    ranks: tuple[int, ...] = ()
    """All ranks that the topic is about."""
    device_name: str | None = None
    on_host: bool = False
    predicted_peak_bytes: int | None = None
    observed_peak_bytes: int | None = None
    checkpoint_step: int | None = None
    suspect: Suspect | None = None
    saving: EstimatedSaving | None = None
    advice: tuple[Mapping[str, Any], ...] = ()
    """All advice of the estimator for this run, as stored with the prediction."""
    acked_by: str | None = None
    """Name of the person who acknowledged the alert; `somebody` if it's unknown."""
    snoozed_until: float | None = None
    false_alarm_at: float | None = None
    handling: tuple[str, ...] = ()
    """A line for each thing that people did about the alert, with their names."""
    error: str | None = None
    failure: tuple[str, ...] = ()
    """How often the same failure was seen, and whether it has come back."""
    autopsy: tuple[str, ...] = ()
    """Lines of the OOM report: the failed request, what held the memory, what to change."""
    is_follow_up: bool = False
    """True if an earlier message said the same without the suspect."""
    is_repeat: bool = False
    """True if an earlier attempt may have been delivered already."""
    is_overtaken: bool = False
    """True if a later message of the topic was sent before this one was retried by hand."""
    delayed_s: float = 0.0
    """Time that the message has waited."""
    curve: MemoryCurve | None = None
    folded: tuple[str, ...] = ()
    """A line for each message, if this one stands for several of a project and a rule."""
    folded_suspects: tuple[str, ...] = ()
    """The suspects of those messages, with their fixes."""
    receipt: JsonObject = field(default_factory=dict)
    """Receipt of the last message on this topic, with what the dispatcher adds to it."""


class DeliveryFailedError(Exception):
    """A channel did not accept a message. `is_final`: retrying is pointless.

    `retry_after_s` is what the service asked for. The message never holds a token or the address of
    a webhook.
    """

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, is_final: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.is_final = is_final


class Channel:
    """A way to notify people. Each channel's module has a subclass and a `from_settings`."""

    secrets: tuple[str, ...] = ()
    """Texts that must never appear in a log, an error or a response."""
    wants_curve = False
    """True if messages should bring a memory curve for a chart."""
    folds = False
    """True if one message may stand for several: not for services that group alerts themselves."""
    takes_digests = True
    """False for services that keep incidents, where a digest would be one."""
    follows_up = False
    """True if a second message names the suspect once it's known, since the first can't change."""
    can_refresh = False
    """True if `refresh` does anything."""

    def send(self, message: AlertMessage) -> Receipt:
        """Deliver a message and return a receipt for later messages of its topic.

        Raises DeliveryFailedError.
        """
        raise NotImplementedError

    def refresh(self, message: AlertMessage) -> Receipt:
        """Update a sent message without notifying again; return the new receipt.

        Raises DeliveryFailedError.
        """
        return message.receipt


class MissingChannel(Channel):
    """Substitute for a channel that has waiting messages but is no longer configured."""

    def send(self, message: AlertMessage) -> Receipt:
        raise DeliveryFailedError(
            "this channel is no longer configured: configure it again, or let the message expire"
        )


def plain_receipt(receipt: Receipt) -> Receipt:
    """Return the values of a receipt that a database can store; leave out the others.

    The message has left: an odd response of the service is no reason to send it again.
    """
    return {name: value for name, value in receipt.items() if _is_storable(value)}


def _is_storable(value: object) -> bool:
    # a subclass of str, such as a mail's header, can't be encoded
    if type(value) not in (str, int, float, bool, NoneType):
        return False
    try:
        return len(msgspec.json.encode(value)) <= MAX_RECEIPT_VALUE_BYTES
    except ValueError:
        return False


def retry_after_s(headers: Mapping[str, Any]) -> float | None:
    """Return the seconds of a Retry-After header, at most MAX_RETRY_AFTER_S.

    Return None without such a header, or for a date: none of these services sends one.
    """
    values = (str(value) for name, value in headers.items() if name.lower() == "retry-after")
    try:
        seconds = float(next(values, ""))
    except ValueError:
        return None
    return min(seconds, MAX_RETRY_AFTER_S) if math.isfinite(seconds) and seconds >= 0 else None


def secret_parts(url: str) -> tuple[str, ...]:
    """Return the texts to mask for a secret address: all of it, and its parts."""
    parts = urlsplit(url)
    pieces = (
        *parts.path.split("/"),
        parts.query,
        *re.split("[&=]", parts.query),
        parts.password or "",
    )
    quoted = {piece for piece in pieces if len(piece) >= MIN_SECRET_LENGTH} | {parts.password or ""}
    return (url, *sorted(quoted | {unquote(piece) for piece in quoted}))


def mask(text: str, secrets: Collection[str]) -> str:
    """Return `text` with every secret replaced."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "[hidden]")
    return text
