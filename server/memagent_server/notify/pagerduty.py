"""PagerDuty, Events API v2: one PagerDuty incident a topic.

A warning triggers, an escalation triggers again under the same dedup_key, and what ended well resolves. A death or a silence stays
open and says so: somebody should look. (https://developer.pagerduty.com/docs/events-api-v2-overview)
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import msgspec

from memagent_server.notify import http_client
from memagent_server.notify.channel import AlertMessage, Channel
from memagent_server.notify.message_text import (
    advice,
    cut,
    details,
    headline,
    needs_runbook,
    plain_text,
    where,
)
from memagent_server.settings import Settings

SUMMARY_LIMIT, DEDUP_LIMIT = 1024, 255
_WELL = ("averted", "finished")
_SEVERITIES = {"critical": "critical", "warning": "warning"}
_NEVER = (400,)


def from_settings(settings: Settings) -> Channel | None:
    if not settings.pagerduty_routing_key:
        return None
    return PagerDuty(settings.pagerduty_routing_key, url=settings.pagerduty_url)


class PagerDuty(Channel):
    can_refresh = True

    def __init__(self, routing_key: str, *, url: str = "https://events.pagerduty.com") -> None:
        self._routing_key, self._url = routing_key, f"{url.rstrip('/')}/v2/enqueue"
        self.secrets = (routing_key,)

    def send(self, story: AlertMessage) -> dict[str, Any]:
        action = _action(story)
        if story.is_overtaken and action == "trigger":
            return dict(story.receipt)  # it would open again what has ended since
        key = cut(f"memagent-{story.run_id}-{story.topic}", DEDUP_LIMIT)
        status = self._post(
            {
                "event_action": action,
                "dedup_key": key,
                **(_event(story) if action == "trigger" else {}),
            }
        )
        if story.to_state == "test":
            self._post({"event_action": "resolve", "dedup_key": key})
        return {"status": status, "dedup_key": key}

    def refresh(self, story: AlertMessage) -> dict[str, Any]:
        """Who acknowledges here has acknowledged there."""
        if not story.acked_by or story.receipt.get("is_acked"):
            return dict(story.receipt)
        self._post({"event_action": "acknowledge", "dedup_key": story.receipt["dedup_key"]})
        return {**story.receipt, "is_acked": True}

    def _post(self, event: dict[str, Any]) -> int:
        body = msgspec.json.encode({"routing_key": self._routing_key, **event})
        return http_client.post(
            self._url, body, who="PagerDuty", final=_NEVER, allow_local=True
        ).status


def _action(story: AlertMessage) -> str:
    return "resolve" if story.to_state in _WELL else "trigger"


def _event(story: AlertMessage) -> dict[str, Any]:
    found = advice(story)
    at = datetime.fromtimestamp(story.at, timezone.utc).isoformat()
    custom = {"where": where(story), "details": details(story), "text": plain_text(story)}
    if found is not None:
        custom |= {"cause": str(story.facts["cause"]), "what_to_change": found.change}
    severity = "info" if story.to_state == "test" else _severity(story)
    return {
        "client": "memagent",
        "client_url": story.run_url,
        "links": _links(story),
        "payload": {
            "summary": cut(headline(story), SUMMARY_LIMIT),
            "source": story.host or story.run_id,
            "severity": severity,
            "timestamp": at,
            "component": story.device_name or "",
            "group": story.project,
            "class": story.rule,
            "custom_details": custom,
        },
    }


def _links(story: AlertMessage) -> list[dict[str, str]]:
    links = [
        {"href": story.run_url, "text": "Open run"},
        {"href": story.alert_url, "text": "Open alert"},
    ]
    return (
        [*links, {"href": story.runbook_url, "text": "What to do"}]
        if needs_runbook(story)
        else links
    )


def _severity(story: AlertMessage) -> str:
    return (
        "critical"
        if story.to_state in ("oom", "lost_contact")
        else _SEVERITIES.get(story.severity, "info")
    )
