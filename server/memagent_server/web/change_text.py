"""Words for the requests of the audit log."""

from __future__ import annotations

import math
from http import HTTPStatus

from memagent.units import format_bytes

_RUNS = "/api/v1/runs"
_ALERT = "/<any(ack, snooze, 'false-alarm', undo):action>"
_FAILURE = "/<any(resolve, reopen):action>"
TEXTS: dict[tuple[str, str], str] = {
    ("POST", "/login"): "Login",
    ("GET", "/login"): "Login",
    ("GET", "/login/oidc/callback"): "Login",
    ("POST", "/logout"): "Logout",
    ("POST", "/runs"): "Changed runs",
    ("PATCH", _RUNS): "Changed runs",
    ("DELETE", _RUNS): "Deleted runs",
    ("POST", "/runs/<run_id>"): "Changed a run's name or notes",
    ("PATCH", f"{_RUNS}/<run_id>"): "Changed a run",
    ("DELETE", f"{_RUNS}/<run_id>"): "Deleted a run",
    ("POST", "/runs/<run_id>/commands"): "Sent a command to a run",
    ("POST", f"{_RUNS}/<run_id>/commands"): "Sent a command to a run",
    ("POST", "/runs/<run_id>/public-link"): "Opened or revoked a run's public link",
    ("PUT", f"{_RUNS}/<run_id>/public-link"): "Opened a run's public link",
    ("DELETE", f"{_RUNS}/<run_id>/public-link"): "Revoked a run's public link",
    ("POST", "/alerts/<int:alert_id>/say"): "Answered an alert",
    ("POST", "/alerts/acknowledge"): "Acknowledged alerts",
    ("POST", f"/api/v1/alerts/<int:alert_id>{_ALERT}"): "Answered an alert",
    ("POST", f"/failures/<fingerprint>{_FAILURE}"): "Changed a failure's state",
    ("POST", f"/api/v1/failures/<fingerprint>{_FAILURE}"): "Changed a failure's state",
    ("POST", "/settings"): "Changed rules",
    ("PUT", "/api/v1/rules"): "Changed rules",
    ("POST", "/settings/columns"): "Changed rules on columns",
    ("PUT", "/api/v1/column-rules"): "Changed rules on columns",
    ("POST", "/settings/channels"): "Tested a channel, or queued a notification again",
    ("POST", "/api/v1/channels/<name>/test"): "Tested a channel",
    ("POST", "/api/v1/notifications/<int:notification_id>/retry"): "Queued a notification again",
    ("POST", "/settings/routing"): "Changed routing",
    ("PUT", "/api/v1/routes"): "Changed routing",
    ("POST", "/settings/schedules"): "Changed a channel's schedule",
    ("PUT", "/api/v1/schedules"): "Changed channels' schedules",
    ("POST", "/settings/tokens"): "Created or revoked a token",
    ("POST", "/settings/people"): "Ended a person's sessions",
    ("POST", "/views"): "Saved or deleted a view",
    ("PUT", "/api/v1/views"): "Saved a view",
    ("DELETE", "/api/v1/views"): "Deleted a view",
}
"""Words by method and route. A route of an earlier version is shown as it was sent."""


_ACTIONS: dict[tuple[str, str], str] = {
    ("alerts", "ack"): "Acknowledged an alert",
    ("alerts", "snooze"): "Snoozed an alert",
    ("alerts", "false-alarm"): "Marked an alert as a false alarm",
    ("alerts", "undo"): "Took back an answer to an alert",
    ("failures", "resolve"): "Resolved a failure",
    ("failures", "reopen"): "Reopened a failure",
    ("public-link", "open"): "Opened a run's public link",
    ("public-link", "revoke"): "Revoked a run's public link",
    ("commands", "stop"): "Asked a run to stop",
    ("commands", "checkpoint"): "Asked a run for a checkpoint",
}
"""Words by a part of the route and the last word of the subject, for routes with several."""


def describe(method: str, route: str, subject: str) -> tuple[str, str]:
    """Return the words for a change, and what it's about without the action that they name."""
    rest, _, action = subject.rpartition(" ")
    for (part, name), text in _ACTIONS.items():
        if part in route and name == action:
            return text, rest
    return TEXTS.get((method, route), f"{method} {route}"), subject


def value_text(name: str, value: str | None) -> str:
    """Return a value of a change as pages show it: bytes with their unit."""
    if value is None:
        return "none"
    return format_bytes(float(value)) if name.endswith("_bytes") and _is_number(value) else value


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def problem_of(status: int) -> str:
    """Return `refused: 403 Forbidden` or `failed: 500 …`, "" for a request that was followed."""
    if status < HTTPStatus.BAD_REQUEST:
        return ""
    known = status in {item.value for item in HTTPStatus}
    verb = "refused" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "failed"
    return f"{verb}: {status} {HTTPStatus(status).phrase if known else ''}".strip()
