"""Pages of alerts: the incidents, actions on one, and the scoreboard of past warnings."""

from __future__ import annotations

from flask import Blueprint, Response, request

from memagent_server.http.api_route import require_scope
from memagent_server.http.context import current
from memagent_server.http.problems import Problem
from memagent_server.schemas.base import ALERT_STATES
from memagent_server.store.incidents import list_incidents
from memagent_server.web import query
from memagent_server.web.api_alerts import ALERT_ACTIONS, AlertAction, act_on_alert, read_scoreboard
from memagent_server.web.rendering import REFRESH_S, redirect_to, render_page

blueprint = Blueprint("alerts", __name__, url_prefix="/alerts")

STATES = ("open", *ALERT_STATES)
PAGE_SIZE = 50
SCOREBOARD_DAYS = 90


@blueprint.get("")
def show_alerts() -> Response:
    with current().database.read() as session:
        page = list_incidents(
            session,
            state=query.choice("state", STATES),
            run_id=query.text("run"),
            limit=PAGE_SIZE,
            cursor=query.text("cursor"),
        )
        return render_page(
            "alerts.html",
            session,
            incidents=page.incidents,
            next_cursor=page.next_cursor,
            state=query.text("state"),
            states=STATES,
            refresh_s=REFRESH_S,
        )


@blueprint.post("/<int:alert_id>/say")
@require_scope("read")
def change_alert(alert_id: int) -> Response:
    action = request.form.get("what", "")
    if action not in ALERT_ACTIONS:
        raise Problem(
            422, f"what: {action!r} is not one of {', '.join(ALERT_ACTIONS)}.", field="what"
        )
    act_on_alert(alert_id, action, AlertAction())
    return redirect_to(request.form.get("next") or "/alerts")


@blueprint.get("/scoreboard")
def show_scoreboard() -> Response:
    days = query.number("days", least=1, most=3650) or SCOREBOARD_DAYS
    scores = read_scoreboard(days, query.text("project"))
    with current().database.read() as session:
        return render_page("scoreboard.html", session, scores=scores)
