"""The pages: runs, one run, alerts. Thin: they ask the store, let `words` and `figures` shape the answer, and render a template.

Pages refresh themselves by asking for themselves again (`static/live.js`): an ETag makes that an empty 304 while nothing changes.
"""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, render_template, request
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from memagent.estimator.advice import advice_for_cause
from memagent_server import auth
from memagent_server.compare import components
from memagent_server.context import current
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.models import ALERT_STATES, OPEN_ALERT_STATES, RUN_STATUSES, Alert, Prediction, Run
from memagent_server.store.predictions import list_predictions
from memagent_server.store.runs import RunQuery, describe, get_run, list_runs, summarize
from memagent_server.web import figures, query, words
from memagent_server.web.api import forecasts_of, list_alerts
from memagent_server.web.words import Facts

blueprint = Blueprint("pages", __name__, template_folder="templates", static_folder="static", static_url_path="/static")

RUNS_ON_A_PAGE = 50
REFRESH_S = 3
REFRESH_ENDED_S = 15
"""A run that has ended changes no more, save for the notifications about it."""


@blueprint.get("/")
def show_runs() -> Response:
    wanted = RunQuery(
        project=query.text("project"),
        status=query.choice("status", RUN_STATUSES),
        q=query.text("q"),
        limit=RUNS_ON_A_PAGE,
        cursor=query.text("cursor"),
    )
    context = current()
    with context.database.read() as session:
        page = list_runs(session, wanted)
        runs = summarize(session, page.runs)
        shared = _shared(session)
        is_open = bool(runs) or auth.is_open(session, context.settings)
    return _page(
        "runs.html",
        **shared,
        runs=runs,
        wanted=wanted,
        statuses=RUN_STATUSES,
        is_filtered=bool(wanted.q or wanted.status or wanted.project or wanted.cursor),
        next_cursor=page.next_cursor,
        needs_token=not is_open,
        refresh_s=REFRESH_S,
    )


@blueprint.get("/runs/<run_id>")
def show_run(run_id: str) -> Response:
    rank, device = query.number("rank", least=0, most=2**31 - 1), query.text("device")
    now = current().clock()
    with current().database.read() as session:
        found = get_run(session, run_id)
        if found is None:
            raise UnknownRunError(run_id)
        run = _described(session, found)
        forecasts = forecasts_of(session, run_id)
        compared = components(session, run_id)
        predictions = list_predictions(session, run_id)
        shared = _shared(session)
    streams = [stream for stream in run["streams"] if stream["is_current"] and stream["kind"] != "scalars"]
    stream = figures.choose_stream(streams, rank, device)
    gravest = max(forecasts["forecasts"], key=_gravity, default=None)
    first_warning = figures.first_warning(forecasts["history"])
    cause = _cause(run, gravest, first_warning)
    prediction = _prediction_of(predictions, stream)
    return _page(
        "run.html",
        **shared,
        run=run,
        headline=words.headline(run, gravest, first_warning["step"] if first_warning else None, now),
        forecast=gravest,
        cause=cause,
        advice=advice_for_cause(cause) if cause else None,
        streams=streams,
        stream=stream,
        prediction=prediction,
        chart=figures.chart_facts(run, stream, forecasts, prediction and prediction.peak_allocated_bytes) if stream else None,
        component_rows=figures.component_rows(compared) if compared else [],
        compared=compared,
        phases=figures.phase_peaks(stream["latest"]) if stream else [],
        scalars=sorted({name for item in run["streams"] if item["kind"] == "scalars" for name in item["latest"]} - {"step", "time_s"}),
        refresh_s=REFRESH_S if run["status"] == "running" else REFRESH_ENDED_S,
    )  # fmt: skip


@blueprint.get("/alerts")
def show_alerts() -> Response:
    state = query.choice("state", ("open", *ALERT_STATES))
    with current().database.read() as session:
        found = list_alerts(session, state=state, limit=RUNS_ON_A_PAGE, cursor=query.text("cursor"))
        shared = _shared(session)
    return _page(
        "alerts.html",
        **shared,
        alerts=found["alerts"],
        next_cursor=found["next_cursor"],
        state=state,
        states=("open", *ALERT_STATES),
        refresh_s=REFRESH_S,
    )


def _shared(session: Session) -> dict[str, Any]:
    """What the frame around every page shows."""
    is_open = select(func.count()).select_from(Alert).where(Alert.state.in_(OPEN_ALERT_STATES))
    return {
        "open_alerts": session.scalar(is_open) or 0,
        "now": current().clock(),
        "is_logged_in": auth.COOKIE in request.cookies,
        "server_url": current().settings.public_url,
    }


def _described(session: Session, run: Run) -> dict[str, Any]:
    return {**describe(session, run), "alerts": list_alerts(session, run_id=run.id)["alerts"]}


def _page(template: str, **facts: Any) -> Response:
    response = Response(render_template(template, **facts), mimetype="text/html")
    response.headers["Cache-Control"] = "private, no-cache"
    response.add_etag(weak=True)
    return response.make_conditional(request)


def _gravity(forecast: Facts) -> tuple[int, float]:
    return words.LEVELS.index(forecast["level"]), forecast["oom_probability"]


def _cause(run: Facts, gravest: Facts | None, first_warning: Facts | None) -> str | None:
    """Why memory runs out, or ran out. A run that ended well needs no cause."""
    if run["status"] in ("completed", "failed"):
        return None
    if gravest is not None and gravest["level"] != "ok":
        cause: str | None = gravest["cause"]
        return cause
    return first_warning["cause"] if first_warning is not None and run["status"] == "oom" else None


def _prediction_of(predictions: list[Prediction], stream: Facts | None) -> Prediction | None:
    """The newest prediction for the stream, a traced one before a formula's."""
    mine = [
        prediction
        for prediction in predictions
        if stream is None or (prediction.rank, prediction.device) == (stream["rank"], stream["device"])
    ]
    traced = [prediction for prediction in mine if prediction.method == "trace"]
    return next(iter(traced or mine), None)
