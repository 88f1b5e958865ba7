"""Pages of alerts: open incidents by urgency, ended ones, actions, and the scoreboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flask import Blueprint, Response, request

from memagent_server.http.api_route import require_scope
from memagent_server.http.context import current
from memagent_server.http.problems import Problem
from memagent_server.schemas.alerts import Incident
from memagent_server.schemas.base import ALERT_STATES
from memagent_server.schemas.snapshots import SuspectByRank
from memagent_server.store.engine import Session
from memagent_server.store.incidents import list_incidents
from memagent_server.store.runs import get_run
from memagent_server.store.snapshots import suspects_of
from memagent_server.store.summaries import summarize
from memagent_server.web import query
from memagent_server.web.api_alerts import (
    ALERT_ACTIONS,
    AlertAction,
    act_on_alert,
    describe_channels,
    read_scoreboard,
)
from memagent_server.web.failures import shared_failures
from memagent_server.web.rendering import REFRESH_S, redirect_to, render_page
from memagent_server.web.shared_pages import share_refreshes
from memagent_server.web.triage import TriageGroup, place_of, triage

blueprint = Blueprint("alerts", __name__, url_prefix="/alerts")

STATES = ("open", "ended", *ALERT_STATES)
OPEN_STATES = (None, "open", "pending", "firing")
PAGE_SIZE = 50
MAX_OPEN = 200
SCOREBOARD_DAYS = 90


@blueprint.get("")
@share_refreshes()
def show_alerts() -> Response:
    state = query.choice("state", STATES)
    is_open = state in OPEN_STATES
    has_channel = any(channel.is_set_up for channel in describe_channels())
    with current().database.read() as session:
        page = list_incidents(
            session,
            state=state or "open",
            run_id=query.text("run"),
            limit=MAX_OPEN if is_open else PAGE_SIZE,
            cursor=query.text("cursor"),
        )
        leaks = page.incidents if is_open else _deaths(page.incidents)
        suspects = _first_suspects(session, list(dict.fromkeys(item.run_id for item in leaks)))
        places = {run_id: place_of(suspect) for run_id, suspect in suspects.items()}
        return render_page(
            "alerts.html",
            session,
            groups=_triage(session, page.incidents, places) if is_open else [],
            incidents=[] if is_open else page.incidents,
            places=places,
            suspects=suspects,
            has_channel=has_channel,
            failures=shared_failures(session, {item.run_id for item in page.incidents}),
            next_cursor=page.next_cursor,
            state=state or "open",
            is_open=is_open,
            ended_states=[name for name in ALERT_STATES if name not in OPEN_STATES],
            refresh_s=REFRESH_S,
        )


def _deaths(incidents: Sequence[Incident]) -> list[Incident]:
    return [item for item in incidents if item.state == "oom"]


def _triage(
    session: Session, incidents: Sequence[Incident], places: Mapping[str, str]
) -> list[TriageGroup]:
    ids = list(dict.fromkeys(incident.run_id for incident in incidents))
    rows = [run for run_id in ids if (run := get_run(session, run_id)) is not None]
    runs = {run.id: run for run in summarize(session, rows)}
    return triage(incidents, runs, places, current().clock())


def _first_suspects(session: Session, run_ids: Sequence[str]) -> dict[str, SuspectByRank]:
    suspects = {run_id: suspects_of(session, run_id)[:1] for run_id in run_ids[:PAGE_SIZE]}
    return {run_id: items[0] for run_id, items in suspects.items() if items}


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


@blueprint.post("/acknowledge")
@require_scope("read")
def acknowledge_alerts() -> Response:
    """Acknowledge the incidents of several alerts: those that the page showed."""
    ids = request.form.getlist("alerts")
    if not 1 <= len(ids) <= MAX_OPEN or not all(
        item.isdecimal() and len(item) < 19 for item in ids
    ):
        raise Problem(422, f"alerts: give the ids of 1 to {MAX_OPEN} alerts.", field="alerts")
    for alert_id in dict.fromkeys(map(int, ids)):
        act_on_alert(alert_id, "ack", AlertAction())
    return redirect_to(request.form.get("next") or "/alerts")


@blueprint.get("/scoreboard")
def show_scoreboard() -> Response:
    days = query.number("days", least=1, most=3650) or SCOREBOARD_DAYS
    scores = read_scoreboard(days, query.text("project"))
    with current().database.read() as session:
        return render_page("scoreboard.html", session, scores=scores)
