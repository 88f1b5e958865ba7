"""Test message: clearly marked, sent by the same code as a real one, without the outbox."""

from __future__ import annotations

import secrets

from memagent_server.notify.channel import AlertMessage, Channel, DeliveryFailedError, mask
from memagent_server.settings import SEVERITIES


def send_test(channel: Channel, public_url: str, now: float) -> str:
    """Send a test message and return the channel's response.

    Raises DeliveryFailedError, with all secrets masked.
    """
    try:
        receipt = channel.send(sample_message(public_url, now))
    except DeliveryFailedError as error:
        raise DeliveryFailedError(
            mask(str(error), channel.secrets),
            retry_after_s=error.retry_after_s,
            is_final=error.is_final,
        ) from None
    fields = [f"{name} {value}" for name, value in receipt.items() if isinstance(value, str | int)]
    return mask(", ".join(fields) or "accepted", channel.secrets)


def sample_message(public_url: str, now: float) -> AlertMessage:
    """Return a message that belongs to no run and no alert."""
    key = f"test:{secrets.token_hex(8)}"
    return AlertMessage(
        alert_id=0,
        transition_id=0,
        topic=key,
        dedup_key=key,
        rule="test",
        severity=SEVERITIES[0],
        from_state="ok",
        to_state="test",
        reason="a test message was requested",
        at=now,
        step=0,
        first_step=0,
        opened_at=now,
        facts={},
        run_id="test",
        run_name="test",
        project="test",
        run_url=public_url,
        alert_url=f"{public_url}/alerts",
    )
