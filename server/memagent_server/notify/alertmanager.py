"""Prometheus Alertmanager, API v2: a topic is one alert, with equal labels from warning to end.

1. Alertmanager resolves an alert when its `endsAt` has passed. We set it a day
   ahead, and move it whenever the forecast changes or half a day has passed: an outage of this
   server resolves nothing soon.
2. Severity is a label, so an escalation is a new alert: the same request ends the warning.
3. `averted` and `finished` end the alert. A death keeps firing for DEATH_FIRES_S.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone

import msgspec

from memagent_server.notify import http_client
from memagent_server.notify.channel import AlertMessage, Channel, Receipt, secret_parts
from memagent_server.notify.message_text import RESOLVED_STATES, details, headline, plain_text
from memagent_server.schemas.base import JsonObject
from memagent_server.settings import SEVERITIES, Settings

AHEAD_S = 86_400.0
DEATH_FIRES_S = 3600.0
TEST_S = 60.0
_FINAL_STATUSES = (400,)


def from_settings(settings: Settings) -> Channel | None:
    if not settings.alertmanager_url:
        return None
    return Alertmanager(settings.alertmanager_url)


class Alertmanager(Channel):
    """`url` may hold user and password; `clock` returns Unix time."""

    can_refresh = True
    takes_digests = False

    def __init__(self, url: str, *, clock: Callable[[], float] = time.time) -> None:
        self._url = f"{url.rstrip('/')}/api/v2/alerts"
        self._clock = clock
        self.secrets = secret_parts(url) if "@" in url else ()

    def send(self, message: AlertMessage) -> Receipt:
        if message.is_overtaken:
            return dict(message.receipt)  # it would reopen what has ended since
        now = self._clock()
        severity = _severity(message)
        alerts = [_alert(message, severity, _ends_at(message, now))]
        before = message.receipt.get("severity")
        if before is not None and before != severity:
            alerts.append(_alert(message, before, now))
        return {"status": self._post(alerts), "severity": severity}

    def refresh(self, message: AlertMessage) -> Receipt:
        severity = message.receipt.get("severity", message.severity)
        self._post([_alert(message, severity, self._clock() + AHEAD_S)])
        return dict(message.receipt)

    def _post(self, alerts: list[JsonObject]) -> int:
        response = http_client.send_json(
            self._url,
            msgspec.json.encode(alerts),
            service="Alertmanager",
            final_statuses=_FINAL_STATUSES,
            allow_local=True,
        )
        return response.status


def _ends_at(message: AlertMessage, now: float) -> float:
    if message.to_state in RESOLVED_STATES:
        return now
    return now + {"firing": AHEAD_S, "test": TEST_S}.get(message.to_state, DEATH_FIRES_S)


def _severity(message: AlertMessage) -> str:
    """Return the label of the alert to update; the end keeps the one that it fired with."""
    if message.to_state in RESOLVED_STATES:
        return str(message.receipt.get("severity", message.severity))
    if message.to_state in ("oom", "lost_contact"):
        return SEVERITIES[-1]
    return message.severity


def _alert(message: AlertMessage, severity: str, ends_at: float) -> JsonObject:
    return {
        "labels": {
            "alertname": "Memagent" + "".join(map(str.capitalize, message.rule.split("_"))),
            "severity": severity,
            "project": message.project,
            "run_id": message.run_id,
            "run_name": message.run_name,
            "topic": message.topic,
        },
        "annotations": _annotations(message),
        "startsAt": _iso(min(message.opened_at, ends_at)),
        "endsAt": _iso(ends_at),
        "generatorURL": message.run_url,
    }


def _annotations(message: AlertMessage) -> dict[str, str]:
    annotations = {
        "summary": headline(message),
        "description": "\n".join(details(message)),
        "text": plain_text(message),
    }
    if message.runbook_url:
        annotations["runbook_url"] = message.runbook_url
    if message.suspect is not None:
        annotations["suspect"] = message.suspect.location
        annotations["fix"] = message.suspect.fix
    return annotations


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat()
