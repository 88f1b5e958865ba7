"""Prometheus Alertmanager, API v2: a topic is an alert there, under labels that stay the same from its warning to its end.

1. Alertmanager takes an alert for resolved when its `endsAt` has passed. Ours is a day ahead, and pushed on whenever the forecast
   moves or half a day has gone by: silence of ours resolves nothing soon.
2. Severity is a label, so an escalation is another alert: the warning is ended in the same request.
3. `averted` and `finished` end the alert. A death or a silence fires on for STANDS_S, then Alertmanager lets it go.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import msgspec

from memagent_server.notify import http_client
from memagent_server.notify.channel import AlertMessage, Channel, parts_of_address
from memagent_server.notify.message_text import details, headline, plain_text
from memagent_server.settings import SEVERITIES, Settings

AHEAD_S = 86_400.0
STANDS_S = 3600.0
TEST_S = 60.0
_WELL = ("averted", "finished")
_NEVER = (400,)


def from_settings(settings: Settings) -> Channel | None:
    if not settings.alertmanager_url:
        return None
    return Alertmanager(settings.alertmanager_url)


class Alertmanager(Channel):
    """`url` is Alertmanager's address, with user and password where it asks for them. `clock` gives seconds since the epoch."""

    can_refresh = True

    def __init__(self, url: str, *, clock: Callable[[], float] = time.time) -> None:
        self._url, self._clock = f"{url.rstrip('/')}/api/v2/alerts", clock
        self.secrets = parts_of_address(url) if "@" in url else ()

    def send(self, story: AlertMessage) -> dict[str, Any]:
        if story.is_overtaken:
            return dict(story.receipt)  # it would open again what has ended since
        now = self._clock()
        severity = _severity(story)
        alerts = [_alert(story, severity, self._ends_at(story, now))]
        before = story.receipt.get("severity")
        if before is not None and before != severity:
            alerts.append(_alert(story, before, now))
        reply = http_client.post(
            self._url,
            msgspec.json.encode(alerts),
            who="Alertmanager",
            final=_NEVER,
            allow_local=True,
        )
        return {"status": reply.status, "severity": severity}

    def refresh(self, story: AlertMessage) -> dict[str, Any]:
        severity = story.receipt.get("severity", story.severity)
        alerts = [_alert(story, severity, self._clock() + AHEAD_S)]
        http_client.post(
            self._url,
            msgspec.json.encode(alerts),
            who="Alertmanager",
            final=_NEVER,
            allow_local=True,
        )
        return dict(story.receipt)

    def _ends_at(self, story: AlertMessage, now: float) -> float:
        if story.to_state in _WELL:
            return now
        return now + {"firing": AHEAD_S, "test": TEST_S}.get(story.to_state, STANDS_S)


def _severity(story: AlertMessage) -> str:
    """The severity that the alert has there: what it was ended with, where it ends."""
    if story.to_state in _WELL:
        return str(story.receipt.get("severity", story.severity))
    if story.to_state in ("oom", "lost_contact"):
        return SEVERITIES[-1]
    return story.severity


def _alert(story: AlertMessage, severity: str, ends_at: float) -> dict[str, Any]:
    labels = {
        "alertname": "Memagent" + "".join(word.capitalize() for word in story.rule.split("_")),
        "severity": severity,
        "project": story.project,
        "run_id": story.run_id,
        "run_name": story.run_name,
        "topic": story.topic,
    }
    return {
        "labels": labels,
        "annotations": {
            "summary": headline(story),
            "description": "\n".join(details(story)),
            "text": plain_text(story),
            **({"runbook_url": story.runbook_url} if story.runbook_url else {}),
        },
        "startsAt": _iso(min(story.opened_at, ends_at)),
        "endsAt": _iso(ends_at),
        "generatorURL": story.run_url,
    }


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat()
