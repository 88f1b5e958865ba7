"""Grafana's annotations: a topic is one, from its warning to its end, shown on the boards by its tags.
(https://grafana.com/docs/grafana/latest/developers/http_api/annotations/)

A message that is sent again after a crash between Grafana's answer and our note of it makes a second annotation.
"""

from __future__ import annotations

from typing import Any

import msgspec

from memagent_server.notify import http_client
from memagent_server.notify.channel import AlertMessage, Channel, DeliveryFailedError
from memagent_server.notify.message_text import details, headline
from memagent_server.settings import Settings

_GONE = (400, 401, 403, 404)
_WHO = "Grafana"


def from_settings(settings: Settings) -> Channel | None:
    if not settings.grafana_url or not settings.grafana_token:
        return None
    return Grafana(settings.grafana_url, settings.grafana_token)


class Grafana(Channel):
    """`url` is Grafana's address, `token` that of a service account that may write annotations (role Editor)."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = f"{url.rstrip('/')}/api/annotations", token
        self.secrets = (token,)

    def send(self, story: AlertMessage) -> dict[str, Any]:
        known = story.receipt.get("id")
        if known is None:
            found = self._say("POST", self._url, _annotation(story))
            return {"id": found.get("id")}
        self._say("PATCH", f"{self._url}/{known}", _annotation(story))
        return dict(story.receipt)

    def _say(self, method: str, url: str, content: dict[str, Any]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._token}"}
        body = msgspec.json.encode(content)
        reply = http_client.post(
            url, body, who=_WHO, headers=headers, final=_GONE, method=method, allow_local=True
        )
        try:
            answer = msgspec.json.decode(reply.text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise DeliveryFailedError(
                f"{_WHO} answered {reply.status} with what is no JSON: is it Grafana?"
            ) from error
        return answer


def _annotation(story: AlertMessage) -> dict[str, Any]:
    opened_ms, at_ms = int(1000 * min(story.opened_at, story.at)), int(1000 * story.at)
    tags = [
        "memagent",
        story.rule,
        story.severity,
        f"run:{story.run_id}",
        f"project:{story.project}",
        story.to_state,
    ]
    return {
        "time": opened_ms,
        "timeEnd": max(at_ms, opened_ms),
        "tags": tags,
        "text": "\n".join((headline(story), *details(story), story.run_url)),
    }
