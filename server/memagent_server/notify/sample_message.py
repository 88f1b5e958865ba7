"""A test message: clearly marked, through the same channel code as a real one, around the outbox."""

from __future__ import annotations

import secrets

from memagent_server.notify.channel import AlertMessage, Channel, DeliveryFailedError, mask
from memagent_server.settings import SEVERITIES


def send_test(channel: Channel, public_url: str, now: float) -> str:
    """Send it, and say what the channel answered. Raises DeliveryFailedError, without any secret in it."""
    try:
        receipt = channel.send(story(public_url, now))
    except DeliveryFailedError as error:
        raise DeliveryFailedError(
            mask(str(error), channel.secrets),
            retry_after_s=error.retry_after_s,
            is_final=error.is_final,
        ) from None
    said = ", ".join(
        f"{name} {value}" for name, value in receipt.items() if isinstance(value, str | int)
    )
    return mask(said or "taken", channel.secrets)


def story(public_url: str, now: float) -> AlertMessage:
    """The story of a test message: no run, no alert."""
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
        reason="a test message was asked for",
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
