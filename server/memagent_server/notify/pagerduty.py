"""PagerDuty, Events API v2: one PagerDuty incident per topic.

A warning triggers, an escalation triggers again under the same dedup_key, and a good end resolves.
A death stays open: someone should take a look.
https://developer.pagerduty.com/docs/events-api-v2-overview
"""

from __future__ import annotations

from datetime import datetime, timezone

import msgspec

from memagent_server.notify import http_client
from memagent_server.notify.channel import AlertMessage, Channel, Receipt
from memagent_server.notify.message_text import (
    RESOLVED_STATES,
    cause_advice,
    details,
    headline,
    needs_runbook,
    origin,
    plain_text,
    truncate,
)
from memagent_server.schemas.base import JsonObject
from memagent_server.settings import Settings

SUMMARY_LIMIT = 1024
DEDUP_LIMIT = 255
_FINAL_STATUSES = (400,)


def from_settings(settings: Settings) -> Channel | None:
    if not settings.pagerduty_routing_key:
        return None
    return PagerDuty(settings.pagerduty_routing_key, url=settings.pagerduty_url)


class PagerDuty(Channel):
    can_refresh = True
    takes_digests = False

    def __init__(self, routing_key: str, *, url: str = "https://events.pagerduty.com") -> None:
        self._routing_key = routing_key
        self._url = f"{url.rstrip('/')}/v2/enqueue"
        self.secrets = (routing_key,)

    def send(self, message: AlertMessage) -> Receipt:
        is_resolved = message.to_state in RESOLVED_STATES
        if message.is_overtaken and not is_resolved:
            return dict(message.receipt)  # it would reopen what has ended since
        key = truncate(f"memagent-{message.run_id}-{message.topic}", DEDUP_LIMIT)
        if is_resolved:
            status = self._post("resolve", key)
        else:
            status = self._post("trigger", key, _event(message))
        if message.to_state == "test":
            self._post("resolve", key)
        return {"status": status, "dedup_key": key}

    def refresh(self, message: AlertMessage) -> Receipt:
        """Acknowledge the incident if the alert was acknowledged in memagent."""
        if not message.acked_by or message.receipt.get("is_acked"):
            return dict(message.receipt)
        self._post("acknowledge", message.receipt["dedup_key"])
        return {**message.receipt, "is_acked": True}

    def _post(self, action: str, dedup_key: str, event: JsonObject | None = None) -> int:
        content = {
            "routing_key": self._routing_key,
            "event_action": action,
            "dedup_key": dedup_key,
            **(event or {}),
        }
        response = http_client.send_json(
            self._url,
            msgspec.json.encode(content),
            service="PagerDuty",
            final_statuses=_FINAL_STATUSES,
            allow_local=True,
        )
        return response.status


def _event(message: AlertMessage) -> JsonObject:
    return {
        "client": "memagent",
        "client_url": message.run_url,
        "links": _links(message),
        "payload": {
            "summary": truncate(headline(message), SUMMARY_LIMIT),
            "source": message.host or message.run_id,
            "severity": _severity(message),
            "timestamp": datetime.fromtimestamp(message.at, timezone.utc).isoformat(),
            "component": message.device_name or "",
            "group": message.project,
            "class": message.rule,
            "custom_details": _custom_details(message),
        },
    }


def _custom_details(message: AlertMessage) -> JsonObject:
    fields = {"where": origin(message), "details": details(message), "text": plain_text(message)}
    advice = cause_advice(message)
    if advice is not None:
        fields |= {"cause": str(message.facts["cause"]), "what_to_change": advice.change}
    if message.suspect is not None:
        fields |= {"suspect": message.suspect.location, "fix": message.suspect.fix}
    return fields


def _links(message: AlertMessage) -> list[dict[str, str]]:
    links = [
        {"href": message.run_url, "text": "Open run"},
        {"href": message.alert_url, "text": "Open alert"},
    ]
    if needs_runbook(message):
        links.append({"href": message.runbook_url, "text": "Runbook"})
    return links


def _severity(message: AlertMessage) -> str:
    if message.to_state == "test":
        return "info"
    if message.to_state in ("oom", "lost_contact"):
        return "critical"
    return message.severity if message.severity in ("critical", "warning") else "info"
