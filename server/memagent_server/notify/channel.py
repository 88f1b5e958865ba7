"""What a channel is, and what it is told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

LONGEST_RETRY_AFTER_S = 3600.0
"""A far end that asks for more is broken, and a warning that is a day late helps nobody."""


@dataclass(frozen=True)
class Story:
    """Everything a message about one transition of an alert can say. Plain values; times are seconds since the epoch."""

    alert_id: int
    transition_id: int
    dedup_key: str
    rule: str
    severity: str
    from_state: str
    to_state: str
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
    host: str | None = None
    rank: int | None = None
    world_size: int = 1
    device_name: str | None = None
    predicted_peak_bytes: int | None = None
    observed_peak_bytes: int | None = None
    error: str | None = None
    is_repeat: bool = False
    receipt: dict[str, Any] = field(default_factory=dict)
    """What the channel answered to the last message about this alert."""


class DeliveryFailedError(Exception):
    """A channel did not take a message. `retry_after_s` is what it asked for; `is_final` when trying again makes no sense.

    The message never holds a secret: no token, no webhook address.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None, is_final: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s, self.is_final = retry_after_s, is_final


def retry_after_s(headers: Mapping[str, Any]) -> float | None:
    """Seconds that an answer's Retry-After asks for, an hour at most; None without one, or for a date, which nobody sends."""
    text = next((str(value) for name, value in headers.items() if name.lower() == "retry-after"), "")
    try:
        seconds = float(text)
    except ValueError:
        return None
    return min(seconds, LONGEST_RETRY_AFTER_S) if math.isfinite(seconds) and seconds >= 0 else None


class Channel(Protocol):
    def send(self, story: Story) -> dict[str, Any]:
        """Deliver, and return a receipt that later messages about the same alert get back. Raises DeliveryFailedError."""
        ...
