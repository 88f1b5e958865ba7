"""What programs can ask: every route of docs/http.md but those that agents post to, which are in `ingest`, and those about alerts."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import datetime, timezone

from flask import Blueprint, Response, current_app, request
from sqlalchemy.orm import Session

import memagent
from memagent_server.compare import compare_runs, components
from memagent_server.compare.runs import FEWEST_RUNS, MOST_RUNS
from memagent_server.http import openapi
from memagent_server.http.api_route import operation
from memagent_server.http.context import current
from memagent_server.http.problems import Problem
from memagent_server.http.responses import chart_answer, json_answer, only, page_answer
from memagent_server.ingest.body import read_message
from memagent_server.schemas import common, queries, runs
from memagent_server.schemas.alerts import RunFacts
from memagent_server.store import migrate
from memagent_server.store.alerts import list_alerts
from memagent_server.store.cuda_contexts import page_contexts
from memagent_server.store.errors import DatabaseError, UnknownRunError
from memagent_server.store.events import list_events
from memagent_server.store.export import MIMETYPES, ExportError, export
from memagent_server.store.forecasts import forecasts_of
from memagent_server.store.leases import count_alive
from memagent_server.store.models import Run
from memagent_server.store.predictions import page_predictions
from memagent_server.store.runs import (
    RunQuery,
    delete_run,
    describe,
    get_run,
    list_runs,
    lock_run,
    summarize,
)
from memagent_server.store.series import series
from memagent_server.store.snapshots import page_snapshots, read_snapshot, suspects_of, viewer_of
from memagent_server.web import query
from memagent_server.web.api_estimate import EstimateBody, answer

blueprint = Blueprint("api", __name__)

_V1 = "/api/v1"
_FAR = 2**62
_DOCUMENT = "memagent_openapi"


@blueprint.get("/openapi.json")
@operation("operation", None, common.JsonObject)
def get_openapi() -> Response:
    """This document."""
    made = current_app.extensions.get(_DOCUMENT)
    if made is None:
        made = current_app.extensions[_DOCUMENT] = openapi.document(current_app)
    return json_answer(made)


@blueprint.get("/healthz")
@operation("operation", None, common.Health)
def get_health() -> Response:
    """Whether the process answers."""
    said = json_answer({"status": "ok", "version": memagent.__version__})
    said.date = datetime.now(
        timezone.utc
    )  # granian sends none; `memagent doctor` compares clocks by it
    return said


@blueprint.get("/readyz")
@operation("operation", None, common.Ready)
def get_readiness() -> Response:
    """Whether the database answers and its schema is current; 503 with the reason where not."""
    try:
        is_current = migrate.is_current(current().database)
    except DatabaseError as error:
        raise Problem(503, "the database does not answer", headers={"Retry-After": "5"}) from error
    if not is_current:
        raise Problem(
            503,
            "the database's schema is of another version: run `memagent db upgrade`",
            headers={"Retry-After": "5"},
        )
    with current().database.read() as session:
        return json_answer({"status": "ready", "workers": count_alive(session, current().clock())})


@blueprint.get(f"{_V1}/runs")
@operation("runs", "read", runs.RunPage, query=queries.RunsQuery)
def get_runs() -> Response:
    """Runs, filtered and sorted, a page at a time."""
    asked, context = query.read(queries.RunsQuery), current()
    wanted = RunQuery(
        project=asked.project,
        status=asked.status,
        tag=asked.tag,
        q=asked.q,
        is_archived=asked.archived == "1",
        sort=asked.sort,
        limit=asked.limit,
        cursor=asked.cursor,
    )
    with context.database.read() as session:
        page = list_runs(session, wanted)
        found = summarize(session, page.runs, public_url=context.settings.public_url)
    return page_answer(
        {"runs": [only(run, asked.fields) for run in found], "next_cursor": page.next_cursor}
    )


@blueprint.get(f"{_V1}/runs/<run_id>")
@operation("runs", "read", RunFacts, query=queries.RunFieldsQuery)
def get_one_run(run_id: str) -> Response:
    """One run: its settings, streams, newest events and alerts."""
    asked, context = query.read(queries.RunFieldsQuery), current()
    with context.database.read() as session:
        run = _known_run(session, run_id)
        described = describe(session, run, public_url=context.settings.public_url)
        alerts = list_alerts(session, run_id=run_id)["alerts"]
    return json_answer(only({**described, "alerts": alerts}, asked.fields))


@blueprint.delete(f"{_V1}/runs/<run_id>")
@operation("runs", "admin", {204: None})
def delete_one_run(run_id: str) -> Response:
    """Delete a run and all that belongs to it."""
    with current().database.write() as session:
        lock_run(session, run_id)
        delete_run(session, run_id)
    return Response(status=204)


@blueprint.get(f"{_V1}/runs/<run_id>/series")
@operation("runs", "read", runs.Series, query=queries.SeriesQuery)
def get_series(run_id: str) -> Response:
    """Samples for a chart.

    Where more samples than points fall into the window, neighbours share a bucket that keeps their minimum and maximum: no spike is lost.
    """
    asked = query.read(queries.SeriesQuery)
    with current().database.read() as session:
        found = series(
            session,
            run_id,
            fields=asked.fields,
            rank=asked.rank,
            device=asked.device,
            attempt=asked.attempt,
            first=asked.first,
            last=asked.last,
            points=asked.points,
        )
        if not found["samples"]:
            _known_run(session, run_id)
    return chart_answer(found)


@blueprint.get(f"{_V1}/runs/<run_id>/forecast")
@operation("runs", "read", runs.Forecasts, query=queries.ForecastQuery)
def get_forecast(run_id: str) -> Response:
    """Whether and when the run is forecast to run out of memory."""
    asked = query.read(queries.ForecastQuery)
    with current().database.read() as session:
        _known_run(session, run_id)
        found = forecasts_of(session, run_id, limit=asked.limit, cursor=asked.cursor)
    return page_answer(found)


@blueprint.get(f"{_V1}/runs/<run_id>/predictions")
@operation("runs", "read", runs.PredictionPage, query=queries.Paged)
def get_predictions(run_id: str) -> Response:
    """What estimators predicted for the run, the newest first."""
    asked = query.read(queries.Paged)
    with current().database.read() as session:
        _known_run(session, run_id)
        found, next_cursor = page_predictions(
            session, run_id, limit=asked.limit, cursor=asked.cursor
        )
    return page_answer({"run_id": run_id, "predictions": found, "next_cursor": next_cursor})


@blueprint.get(f"{_V1}/runs/<run_id>/components")
@operation("runs", "read", runs.Components)
def get_components(run_id: str) -> Response:
    """Predicted beside observed, component by component."""
    with current().database.read() as session:
        found = components(session, run_id)
    if found is None:
        raise UnknownRunError(run_id)
    return json_answer(found)


@blueprint.get(f"{_V1}/runs/<run_id>/suspects")
@operation("runs", "read", runs.Suspects)
def get_suspects(run_id: str) -> Response:
    """Who is blamed for growth in the newest snapshots, the surest first."""
    with current().database.read() as session:
        _known_run(session, run_id)
        found = suspects_of(session, run_id)
    return json_answer({"run_id": run_id, "suspects": found})


@blueprint.get(f"{_V1}/runs/<run_id>/snapshots")
@operation("runs", "read", runs.SnapshotPage, query=queries.Paged)
def get_snapshots(run_id: str) -> Response:
    """Snapshots of who held the memory, the newest first."""
    asked = query.read(queries.Paged)
    with current().database.read() as session:
        _known_run(session, run_id)
        found, next_cursor = page_snapshots(session, run_id, limit=asked.limit, cursor=asked.cursor)
    return page_answer({"run_id": run_id, "snapshots": found, "next_cursor": next_cursor})


@blueprint.get(f"{_V1}/runs/<run_id>/snapshots/<int:snapshot_id>")
@operation("runs", "read", runs.WholeSnapshot)
def get_snapshot(run_id: str, snapshot_id: int) -> Response:
    """One snapshot, with its stacks and tensors."""
    with current().database.read() as session:
        _known_run(session, run_id)
        found = read_snapshot(session, run_id, snapshot_id) if snapshot_id < _FAR else None
    if found is None:
        raise Problem(
            404,
            f"run {run_id!r} has no snapshot {snapshot_id}: GET /api/v1/runs/{run_id}/snapshots lists them",
        )
    return json_answer(found)


@blueprint.get(f"{_V1}/runs/<run_id>/snapshots/<int:snapshot_id>/viewer")
@operation("runs", "read", str, media=("text/html",))
def get_viewer(run_id: str, snapshot_id: int) -> Response:
    """Torch's own interactive page of a snapshot, as a download; 404 for one that came without."""
    with current().database.read() as session:
        _known_run(session, run_id)
        found = viewer_of(session, run_id, snapshot_id) if snapshot_id < _FAR else None
    if found is None:
        raise Problem(
            404, f"run {run_id!r} has no snapshot {snapshot_id} with a page of torch's viewer"
        )
    snapshot, packed = found
    name = f"{run_id}-step{snapshot.step}-rank{snapshot.rank}.html"
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Content-Security-Policy": "sandbox; default-src 'none'",  # an agent's HTML: it never runs as a page of ours
    }
    return Response(_unpacked(packed), mimetype="text/html", headers=headers)


def _unpacked(packed: bytes) -> Iterator[bytes]:
    unpacker = zlib.decompressobj()
    while packed and not unpacker.eof:
        yield unpacker.decompress(packed, 2**20)
        packed = unpacker.unconsumed_tail


@blueprint.get(f"{_V1}/runs/<run_id>/events")
@operation("runs", "read", runs.EventPage, query=queries.EventsQuery)
def get_events(run_id: str) -> Response:
    """What happened once in a run, the newest first."""
    asked = query.read(queries.EventsQuery)
    with current().database.read() as session:
        _known_run(session, run_id)
        found, next_cursor = list_events(
            session, run_id, kind=asked.kind, limit=asked.limit, cursor=asked.cursor
        )
    return page_answer({"run_id": run_id, "events": found, "next_cursor": next_cursor})


@blueprint.get(f"{_V1}/runs/<run_id>/export")
@operation(
    "runs", "read", str, query=queries.ExportQuery, media=tuple(MIMETYPES.values()), problems=(501,)
)
def get_export(run_id: str) -> Response:
    """All samples of a run, streamed."""
    form = query.read(queries.ExportQuery).format
    database = current().database
    with database.read() as session:
        _known_run(session, run_id)
    try:
        pieces = export(database, run_id, form)
    except ExportError as error:
        raise Problem(501, str(error)) from error
    headers = {"Content-Disposition": f"attachment; filename={run_id}.{form}"}
    return Response(pieces, mimetype=MIMETYPES[form], headers=headers)


@blueprint.get(f"{_V1}/compare")
@operation("runs", "read", runs.Comparison, query=queries.CompareQuery, problems=(404,))
def get_comparison() -> Response:
    """Runs beside each other, and the settings and surroundings in which they differ."""
    ids, context = query.read(queries.CompareQuery).runs, current()
    if len(set(ids)) < FEWEST_RUNS:
        raise Problem(
            422, f"runs: name {FEWEST_RUNS} to {MOST_RUNS} runs, separated by commas", field="runs"
        )
    with context.database.read() as session:
        compared = [_known_run(session, run_id) for run_id in dict.fromkeys(ids)]
        found = compare_runs(session, compared, public_url=context.settings.public_url)
    return json_answer(found)


@blueprint.post(f"{_V1}/estimate")
@operation("estimates", "read", runs.Estimate, body=EstimateBody)
def post_estimate() -> Response:
    """Estimate a training step by formula, from a model's name, its config.json or its shape."""
    asked = read_message(request, EstimateBody)
    with current().database.read() as session:
        found = answer(session, asked)
    return json_answer(found)


@blueprint.get(f"{_V1}/contexts")
@operation("estimates", "read", runs.ContextPage, query=queries.Paged)
def get_contexts() -> Response:
    """What processes held on GPUs apart from tensors, as agents measured it; the newest first."""
    asked = query.read(queries.Paged)
    with current().database.read() as session:
        found, next_cursor = page_contexts(session, limit=asked.limit, cursor=asked.cursor)
    return page_answer({"contexts": found, "next_cursor": next_cursor})


def _known_run(session: Session, run_id: str) -> Run:
    run = get_run(session, run_id)
    if run is None:
        raise UnknownRunError(run_id)
    return run
