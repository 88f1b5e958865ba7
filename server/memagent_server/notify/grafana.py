"""Grafana annotations: one per topic, from its warning to its end, shown on dashboards by its tags.

https://grafana.com/docs/grafana/latest/developers/http_api/annotations/

A crash between Grafana's response and the stored receipt leads to a second annotation.
"""

from __future__ import annotations

import msgspec

from memagent_server.notify import http_client
from memagent_server.notify.channel import AlertMessage, Channel, DeliveryFailedError, Receipt
from memagent_server.notify.message_text import details, headline
from memagent_server.schemas.base import JsonObject
from memagent_server.settings import Settings

_SERVICE = "Grafana"
_FINAL_STATUSES = (400, 401, 403, 404)


def from_settings(settings: Settings) -> Channel | None:
    if not settings.grafana_url or not settings.grafana_token:
        return None
    return Grafana(settings.grafana_url, settings.grafana_token)


class Grafana(Channel):
    """`token` belongs to a service account that may write annotations (role Editor)."""

    takes_digests = False

    def __init__(self, url: str, token: str) -> None:
        self._url = f"{url.rstrip('/')}/api/annotations"
        self._token = token
        self.secrets = (token,)

    def send(self, message: AlertMessage) -> Receipt:
        annotation_id = message.receipt.get("id")
        if annotation_id is None:
            created = self._request("POST", self._url, _annotation(message))
            return {"id": created.get("id")}
        self._request("PATCH", f"{self._url}/{annotation_id}", _annotation(message))
        return dict(message.receipt)

    def _request(self, method: str, url: str, content: JsonObject) -> JsonObject:
        response = http_client.send_json(
            url,
            msgspec.json.encode(content),
            service=_SERVICE,
            headers={"Authorization": f"Bearer {self._token}"},
            final_statuses=_FINAL_STATUSES,
            method=method,
            allow_local=True,
        )
        try:
            return msgspec.json.decode(response.text, type=JsonObject)
        except msgspec.DecodeError as error:
            raise DeliveryFailedError(
                f"{_SERVICE} answered {response.status} without JSON: is it Grafana?"
            ) from error


def _annotation(message: AlertMessage) -> JsonObject:
    opened_ms = int(1000 * min(message.opened_at, message.at))
    tags = [
        "memagent",
        message.rule,
        message.severity,
        f"run:{message.run_id}",
        f"project:{message.project}",
        message.to_state,
    ]
    return {
        "time": opened_ms,
        "timeEnd": max(int(1000 * message.at), opened_ms),
        "tags": tags,
        "text": "\n".join((headline(message), *details(message), message.run_url)),
    }
