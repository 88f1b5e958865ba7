"""The pages: runs and one run; those about alerts are in `alerting`.

Thin: they ask the store, let `words` and `figures` shape the answer, and render a template.

Pages refresh themselves by asking for themselves again (`static/live.js`): an ETag makes that an empty 304 while nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, cast
from urllib.parse import urlencode

from flask import Blueprint, Response, render_template, request
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from memagent.diagnostics.console import display_frame, display_roots, with_display_path
from memagent.estimator.advice.by_cause import advice_for_cause
from memagent.forecast.types import LEVELS, PAGING_LEVELS
from memagent_server.compare import autopsy, components
from memagent_server.http import auth
from memagent_server.http.context import current
from memagent_server.http.problems import Problem
from memagent_server.store.alerts import list_incidents
from memagent_server.store.export import FORMATS
from memagent_server.store.forecasts import describe_forecast, forecasts_of
from memagent_server.store.incidents import endangered_runs
from memagent_server.store.models import RUN_STATUSES, Forecast, Incident, Run, Stream
from memagent_server.store.predictions import prediction_for
from memagent_server.store.run_list import SORTS, Sort, list_projects
from memagent_server.store.runs import RunQuery, describe, get_run, list_runs, summarize
from memagent_server.store.snapshots import list_snapshots, read_snapshot, suspects_of
from memagent_server.store.streams import current_streams
from memagent_server.web import assets, labels, query, rank_balance, view_models
from memagent_server.web.flame_graph import flame
from memagent_server.web.labels import Facts

blueprint = Blueprint("pages", __name__, template_folder="../templates")

RUNS_ON_A_PAGE = 50
MOST_ENDANGERED = 6
SORT_NAMES: dict[Sort, str] = {
    "-created_at": "Newest first",
    "created_at": "Oldest first",
    "-peak_ratio": "Fullest first",
    "peak_ratio": "Emptiest first",
    "name": "By name",
    "-name": "By name, backwards",
}
EXPORT_FORMATS = tuple(
    form for form in FORMATS if form != "parquet" or find_spec("pyarrow") is not None
)
"""What this server can write: pyarrow is an extra of its own."""
REFRESH_S = 3
REFRESH_ENDED_S = 15
"""A run that has ended changes no more, save for the notifications about it."""


@blueprint.get("/static/<path:filename>", endpoint="static")
@blueprint.get("/static/at-<digest>/<path:filename>", endpoint="static")
def send_static(filename: str, digest: str | None = None) -> Response:
    return assets.send(filename, digest)


@blueprint.get("/")
def show_runs() -> Response:
    wanted = wanted_runs()
    context = current()
    with context.database.read() as session:
        page = list_runs(session, wanted)
        runs = summarize(session, page.runs)
        projects = list_projects(session, is_archived=wanted.is_archived)
        shared = shared_facts(session)
        is_filtered = wanted != RunQuery(limit=RUNS_ON_A_PAGE, sort=wanted.sort)
        endangered = [] if is_filtered else endangered_runs(session, shared["now"], MOST_ENDANGERED)
        in_danger = summarize(session, endangered)
        needs_token = not runs and not auth.is_open(session, context.settings)
    return answer_page(
        "runs.html",
        **shared,
        runs=runs,
        wanted=wanted,
        address=partial(list_address, wanted),
        projects=projects,
        statuses=RUN_STATUSES,
        sorts=SORT_NAMES,
        is_filtered=is_filtered,
        in_danger=in_danger,
        next_cursor=page.next_cursor,
        needs_token=needs_token,
        refresh_s=REFRESH_S,
    )


def wanted_runs() -> RunQuery:
    """What the address asks of the list. Raises Problem 422."""
    sort = query.choice("sort", SORTS) or "-created_at"
    return RunQuery(
        project=query.text("project"),
        status=query.choice("status", RUN_STATUSES),
        tag=query.text("tag"),
        q=query.text("q"),
        is_archived=query.choice("archived", ("1",)) is not None,
        sort=cast("Sort", sort),
        limit=RUNS_ON_A_PAGE,
        cursor=query.text("cursor"),
    )


def list_address(wanted: RunQuery, **changes: str | None) -> str:
    """The list's first page with the same filters and order, save for the changes; None leaves one out."""
    kept: dict[str, str | None] = {
        "project": wanted.project,
        "status": wanted.status,
        "tag": wanted.tag,
        "q": wanted.q,
        "sort": wanted.sort if wanted.sort != RunQuery.sort else None,
        "archived": "1" if wanted.is_archived else None,
        **changes,
    }
    asked = urlencode({name: value for name, value in kept.items() if value})
    return f"/?{asked}" if asked else "/"


@blueprint.get("/runs/<run_id>")
def show_run(run_id: str) -> Response:
    rank, device = query.number("rank", least=0, most=2**31 - 1), query.text("device")
    with current().database.read() as session:
        run = _described(session, run_id)
        streams = [
            stream
            for stream in run["streams"]
            if stream["is_current"] and stream["kind"] != "scalars"
        ]
        stream = view_models.choose_stream(streams, rank, device)
        newest = forecasts_of(session, run_id)["forecasts"]
        first_warning = _first_warning(session, run_id)
        drawn_warning = _first_warning(session, run_id, stream) if stream else None
        compared = components(session, run_id)
        row = _row_of(session, run_id, stream)
        prediction = prediction_for(session, run_id, row)
        stored = session.get_one(Run, run_id)
        died_of, roots = autopsy(session, stored, row), display_roots(stored.environment)
        snapshots, suspects = list_snapshots(session, run_id), suspects_of(session, run_id)
        drawn = next(
            (
                read_snapshot(session, run_id, item["id"])
                for item in snapshots
                if item["has_stacks"]
            ),
            None,
        )
        shared = shared_facts(session)
    ranks = rank_balance.compared_ranks(streams)
    gravest = max(newest, key=_gravity, default=None)
    cause = _cause(run, gravest, first_warning)
    predicted = prediction.peak_allocated_bytes if prediction else None
    blocks, height = flame(_shown_stacks(drawn["stacks"], roots)) if drawn else ([], 0)
    return answer_page(
        "run.html",
        **shared,
        run=run,
        headline=labels.headline(
            run, gravest, first_warning["step"] if first_warning else None, shared["now"]
        ),
        cause=cause,
        advice=advice_for_cause(cause, prediction.advice if prediction else ()) if cause else None,
        autopsy=died_of,
        snapshots=snapshots,
        suspects=[with_display_path(suspect, roots) for suspect in suspects],
        flame=blocks,
        flame_height=height,
        flame_of=drawn,
        streams=streams,
        stream=stream,
        prediction=prediction,
        chart=view_models.chart_facts(run, stream, newest, drawn_warning, predicted)
        if stream
        else None,
        compared_groups=view_models.compared_groups(compared) if compared else [],
        compared=compared,
        ranks=ranks,
        imbalance=rank_balance.imbalance(ranks),
        rank_rows=rank_balance.rank_rows(ranks),
        export_formats=EXPORT_FORMATS,
        has_scalars=any(
            item["is_current"] and item["kind"] == "scalars" for item in run["streams"]
        ),
        refresh_s=REFRESH_S if run["status"] == "running" else REFRESH_ENDED_S,
    )


def _shown_stacks(stacks: list[dict[str, Any]], roots: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {**stack, "frames": [display_frame(frame, roots) for frame in stack["frames"]]}
        for stack in stacks
    ]


def shared_facts(session: Session) -> dict[str, Any]:
    """What the frame around every page shows."""
    are_open = (
        select(func.count())
        .select_from(Incident)
        .where(Incident.state == "firing", Incident.severity != "note")
    )
    access = auth.who()
    return {
        "open_alerts": session.scalar(are_open) or 0,
        "now": current().clock(),
        "may_change": access is not None and access.allows("admin"),
        "may_say": access is not None and access.allows("read"),
        "is_logged_in": auth.is_logged_in(),
        "server_url": current().settings.public_url,
    }


def _described(session: Session, run_id: str) -> dict[str, Any]:
    run = get_run(session, run_id)
    if run is None:
        raise Problem(404, f"no run {run_id!r} is known; it may have been deleted")
    incidents = list_incidents(session, run_id=run_id)["incidents"]
    alerts = [alert for incident in incidents for alert in incident["alerts"]]
    return {**describe(session, run), "incidents": incidents, "alerts": alerts}


def _row_of(session: Session, run_id: str, stream: Facts | None) -> Stream | None:
    """The stream that `stream` describes."""
    wanted = (stream["rank"], stream["device"]) if stream else None
    return next(
        (row for row in current_streams(session, [run_id]) if (row.rank, row.device) == wanted),
        None,
    )


def _first_warning(
    session: Session, run_id: str, stream: Facts | None = None
) -> dict[str, Any] | None:
    """The earliest forecast of the newest launch, or of one of its streams, that was grave enough to tell people."""
    query = (
        select(Forecast, Stream)
        .join(Stream, Stream.id == Forecast.stream_id)
        .where(Forecast.run_id == run_id, Stream.is_current, Forecast.level.in_(PAGING_LEVELS))
        .order_by(Forecast.step, Forecast.id)
        .limit(1)
    )
    if stream is not None:
        query = query.where(Stream.rank == stream["rank"], Stream.device == stream["device"])
    found = session.execute(query).first()
    return describe_forecast(*found) if found is not None else None


def answer_page(template: str, **facts: Any) -> Response:
    response = Response(render_template(template, **facts), mimetype="text/html")
    response.headers["Cache-Control"] = "private, no-cache"
    response.add_etag(weak=True)
    response.make_conditional(request)
    return response


def _gravity(forecast: Facts) -> tuple[int, float]:
    return LEVELS.index(forecast["level"]), forecast["oom_probability"]


def _cause(run: Facts, gravest: Facts | None, first_warning: Facts | None) -> str | None:
    """Why memory runs out, or ran out. A run that ended well needs no cause."""
    if run["status"] in ("completed", "failed"):
        return None
    if gravest is not None and gravest["level"] != "ok":
        cause: str | None = gravest["cause"]
        return cause
    return first_warning["cause"] if first_warning is not None and run["status"] == "oom" else None
