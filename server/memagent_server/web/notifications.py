"""The outbox and the channels, for programs and for the buttons of pages."""

from __future__ import annotations

from flask import Blueprint, Response

from memagent_server.answers import json_answer
from memagent_server.context import current
from memagent_server.notify import CHANNELS, channels
from memagent_server.notify.channel import DeliveryFailedError
from memagent_server.notify.trial import send_test
from memagent_server.problems import Problem
from memagent_server.settings import SEVERITIES
from memagent_server.store.models import NOTIFICATION_STATES
from memagent_server.store.outbox import list_notifications, send_again
from memagent_server.web import query

blueprint = Blueprint("notifications", __name__)

_V1 = "/api/v1"


@blueprint.get(f"{_V1}/notifications")
def get_notifications() -> Response:
    with current().database.read() as session:
        found = list_notifications(
            session,
            state=query.choice("state", NOTIFICATION_STATES),
            channel=query.text("channel"),
            run_id=query.text("run"),
            limit=query.number("limit", least=1, most=200) or 50,
            cursor=query.text("cursor"),
        )
    return json_answer(found)


@blueprint.post(f"{_V1}/notifications/<int:notification_id>/retry")
def post_retry(notification_id: int) -> Response:
    context = current()
    if notification_id >= 2**63:
        raise Problem(404, f"there is no notification {notification_id}")
    with context.database.write() as session:
        if not send_again(session, notification_id, context.clock()):
            raise Problem(409, f"notification {notification_id} is neither dead nor skipped: there is nothing to retry")
    return json_answer({"id": notification_id, "state": "waiting"})


@blueprint.get(f"{_V1}/channels")
def get_channels() -> Response:
    settings = current().settings
    found = channels(settings)
    return json_answer(
        {
            "channels": [
                {
                    "channel": name,
                    "is_set_up": name in found,
                    "least_severity": settings.notify_severities.get(name, SEVERITIES[0]),
                }
                for name in CHANNELS
            ]
        }
    )


@blueprint.post(f"{_V1}/channels/<name>/test")
def post_test(name: str) -> Response:
    context = current()
    channel = channels(context.settings).get(name)
    if channel is None:
        is_known = name in CHANNELS
        raise Problem(
            404,
            f"the channel {name} is not set up: docs/notifications.md says how"
            if is_known
            else f"{name} is no channel; those are {', '.join(CHANNELS)}",
        )
    try:
        answer = send_test(channel, context.settings.public_url, context.clock())
    except DeliveryFailedError as error:
        return json_answer({"channel": name, "ok": False, "answer": str(error)}, 502)
    return json_answer({"channel": name, "ok": True, "answer": answer})
