"""What a channel is, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


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
    seconds_a_step: float | None = None
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


class Channel(Protocol):
    def send(self, story: Story) -> dict[str, Any]:
        """Deliver, and return a receipt that later messages about the same alert get back. Raises DeliveryFailedError."""
        ...
