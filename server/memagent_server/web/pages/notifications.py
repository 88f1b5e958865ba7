"""The outbox and the channels: what was sent and what was given up, test messages, and sending again."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, request

from memagent_server.http.api_route import operation
from memagent_server.http.context import current
from memagent_server.http.problems import Problem
from memagent_server.http.responses import json_answer, only, page_answer
from memagent_server.notify import CHANNELS, NEEDS, channels
from memagent_server.notify.channel import DeliveryFailedError
from memagent_server.notify.sample_message import send_test
from memagent_server.schemas import alerts as shapes
from memagent_server.schemas.queries import NotificationsQuery
from memagent_server.settings import SEVERITIES
from memagent_server.store.outbox import list_notifications, send_again
from memagent_server.web import query
from memagent_server.web.pages.runs import answer_page, shared_facts

blueprint = Blueprint("notifications", __name__)

_V1 = "/api/v1"
_FAR = 2**62
ON_A_PAGE = 50


@blueprint.get(f"{_V1}/notifications")
@operation("notifications", "read", shapes.NotificationPage, query=NotificationsQuery)
def get_notifications() -> Response:
    """What was sent, what waits and what was given up, the newest first."""
    asked = query.read(NotificationsQuery)
    with current().database.read() as session:
        found = list_notifications(
            session,
            state=asked.state,
            channel=asked.channel,
            run_id=asked.run,
            limit=asked.limit,
            cursor=asked.cursor,
        )
    return page_answer(
        {**found, "notifications": [only(item, asked.fields) for item in found["notifications"]]}
    )


@blueprint.post(f"{_V1}/notifications/<int:notification_id>/retry")
@operation("notifications", "admin", shapes.SentAgain, problems=(409,))
def post_retry(notification_id: int) -> Response:
    """Have a notification sent again that was given up or skipped; 409 for one that was not."""
    _retry(notification_id)
    return json_answer({"id": notification_id, "state": "waiting"})


@blueprint.get(f"{_V1}/channels")
@operation("notifications", "read", shapes.Channels)
def get_channels() -> Response:
    """The channels there are, and which of them are set up."""
    return json_answer({"channels": _described()})


@blueprint.post(f"{_V1}/channels/<name>/test")
@operation(
    "notifications", "admin", {200: shapes.TestDelivery, 502: shapes.TestDelivery}, of_server=True
)
def post_test(name: str) -> Response:
    """Send a message that is marked as a test; 502 where the channel did not take it."""
    ok, answer = _try(name)
    return json_answer({"channel": name, "ok": ok, "answer": answer}, 200 if ok else 502)


@blueprint.get("/settings/channels")
def show_channels() -> Response:
    return _page(None)


@blueprint.post("/settings/channels")
def change_channels() -> Response:
    """A button of the page: `test` names a channel, `retry` a notification."""
    name, number = request.form.get("test", ""), request.form.get("retry", "")
    if name:
        ok, answer = _try(name)
        return _page({"ok": ok, "text": f"{name}: {'taken, ' if ok else ''}{answer}"})
    if not number.isdecimal() or len(number) > 18:
        raise Problem(422, "retry: write the id of a notification", field="retry")
    _retry(int(number))
    return _page({"ok": True, "text": "It will be sent again in a moment"})


def _page(said: dict[str, Any] | None) -> Response:
    with current().database.read() as session:
        dead = list_notifications(session, state="dead", limit=ON_A_PAGE)["notifications"]
        shared = shared_facts(session)
    return answer_page("channels.html", **shared, channels=_shown(), dead=dead, said=said)


def _described() -> list[dict[str, Any]]:
    settings = current().settings
    found = channels(settings)
    least = settings.notify_severities
    return [
        {
            "channel": name,
            "is_set_up": name in found,
            "least_severity": least.get(name, SEVERITIES[0]),
        }
        for name in CHANNELS
    ]


def _shown() -> list[dict[str, Any]]:
    """What the page lists: those that are set up first, the others with the settings that they need."""
    rows = [{**item, "needs": NEEDS[item["channel"]]} for item in _described()]
    return sorted(rows, key=lambda item: not item["is_set_up"])


def _retry(notification_id: int) -> None:
    context = current()
    with context.database.write() as session:
        found = (
            send_again(session, notification_id, context.clock())
            if notification_id < _FAR
            else None
        )
        if found is None:
            raise Problem(
                404, f"no notification {notification_id} is known; its run may have been deleted"
            )
        if not found:
            raise Problem(
                409,
                f"notification {notification_id} is neither dead nor skipped: there is nothing to retry",
            )


def _try(name: str) -> tuple[bool, str]:
    """Send a test message; whether the channel took it, and what it answered. Raises Problem 404."""
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
        return True, send_test(channel, context.settings.public_url, context.clock())
    except DeliveryFailedError as error:
        return False, str(error)
