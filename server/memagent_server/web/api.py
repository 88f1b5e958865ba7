"""What programs can ask: every route of docs/http.md but those that agents post to, which are in `ingest`."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import cast

from flask import Blueprint, Response, request
from sqlalchemy.orm import Session

import memagent
from memagent_server.answers import json_answer
from memagent_server.compare import compare_runs, components
from memagent_server.compare.runs import FEWEST_RUNS, MOST_RUNS
from memagent_server.context import current
from memagent_server.ingest.body import read_message
from memagent_server.permit import permit
from memagent_server.problems import Problem
from memagent_server.store import migrate
from memagent_server.store.alerts import list_alerts
from memagent_server.store.contexts import list_contexts
from memagent_server.store.errors import DatabaseError, UnknownRunError
from memagent_server.store.export import csv_lines
from memagent_server.store.forecasts import forecasts_of
from memagent_server.store.models import RUN_STATUSES, Run
from memagent_server.store.predictions import describe_prediction, list_predictions
from memagent_server.store.run_list import SORTS, Sort
from memagent_server.store.runs import RunQuery, delete_run, describe, get_run, list_runs, lock_run, summarize
from memagent_server.store.series import DEFAULT_FIELDS, series
from memagent_server.store.snapshots import list_snapshots, read_snapshot, suspects_of, viewer_of
from memagent_server.web import query
from memagent_server.web.estimate import EstimateRequest, answer

blueprint = Blueprint("api", __name__)

_V1 = "/api/v1"
_FAR = 2**62


@blueprint.get("/healthz")
def get_health() -> Response:
    said = json_answer({"status": "ok", "version": memagent.__version__})
    said.date = datetime.now(timezone.utc)  # granian sends none; `memagent doctor` compares clocks by it
    return said


@blueprint.get("/readyz")
def get_readiness() -> Response:
    try:
        is_current = migrate.is_current(current().database)
    except DatabaseError as error:
        raise Problem(503, "the database does not answer", headers={"Retry-After": "5"}) from error
    if not is_current:
        raise Problem(
            503, "the database's schema is of another version: run `memagent db upgrade`", headers={"Retry-After": "5"}
        )
    return json_answer({"status": "ready"})


@blueprint.get(f"{_V1}/runs")
def get_runs() -> Response:
    wanted = RunQuery(
        project=query.text("project"),
        status=query.choice("status", RUN_STATUSES),
        tag=query.text("tag"),
        q=query.text("q"),
        is_archived=query.choice("archived", ("0", "1")) == "1",
        sort=cast("Sort", query.choice("sort", SORTS) or "-created_at"),
        limit=query.number("limit", least=1, most=200) or 50,
        cursor=query.text("cursor"),
    )
    context = current()
    with context.database.read() as session:
        page = list_runs(session, wanted)
        runs = summarize(session, page.runs, public_url=context.settings.public_url)
    return json_answer({"runs": runs, "next_cursor": page.next_cursor})


@blueprint.get(f"{_V1}/runs/<run_id>")
def get_one_run(run_id: str) -> Response:
    context = current()
    with context.database.read() as session:
        run = _known_run(session, run_id)
        described = describe(session, run, public_url=context.settings.public_url)
        alerts = list_alerts(session, run_id=run_id)["alerts"]
    return json_answer({**described, "alerts": alerts})


@blueprint.delete(f"{_V1}/runs/<run_id>")
@permit("admin")
def delete_one_run(run_id: str) -> Response:
    with current().database.write() as session:
        lock_run(session, run_id)
        delete_run(session, run_id)
    return Response(status=204)


@blueprint.get(f"{_V1}/runs/<run_id>/series")
def get_series(run_id: str) -> Response:
    first, last = query.number("from", least=0, most=_FAR), query.number("to", least=0, most=_FAR)
    with current().database.read() as session:
        _known_run(session, run_id)
        found = series(
            session,
            run_id,
            fields=query.names("fields", most=100) or DEFAULT_FIELDS,
            rank=query.number("rank", least=0, most=2**31 - 1) or 0,
            device=query.text("device"),
            attempt=query.number("attempt", least=0, most=2**53),
            first=first,
            last=last,
            points=query.number("points", least=10, most=10_000) or 1000,
        )
    return json_answer(found)


@blueprint.get(f"{_V1}/runs/<run_id>/forecast")
def get_forecast(run_id: str) -> Response:
    with current().database.read() as session:
        _known_run(session, run_id)
        found = forecasts_of(session, run_id)
    return json_answer(found)


@blueprint.get(f"{_V1}/runs/<run_id>/predictions")
def get_predictions(run_id: str) -> Response:
    with current().database.read() as session:
        _known_run(session, run_id)
        found = [describe_prediction(prediction) for prediction in list_predictions(session, run_id)]
    return json_answer({"run_id": run_id, "predictions": found})


@blueprint.get(f"{_V1}/runs/<run_id>/components")
def get_components(run_id: str) -> Response:
    with current().database.read() as session:
        found = components(session, run_id)
    if found is None:
        raise UnknownRunError(run_id)
    return json_answer(found)


@blueprint.get(f"{_V1}/runs/<run_id>/suspects")
def get_suspects(run_id: str) -> Response:
    with current().database.read() as session:
        _known_run(session, run_id)
        found = suspects_of(session, run_id)
    return json_answer({"run_id": run_id, "suspects": found})


@blueprint.get(f"{_V1}/runs/<run_id>/snapshots")
def get_snapshots(run_id: str) -> Response:
    with current().database.read() as session:
        _known_run(session, run_id)
        found = list_snapshots(session, run_id)
    return json_answer({"run_id": run_id, "snapshots": found})


@blueprint.get(f"{_V1}/runs/<run_id>/snapshots/<int:snapshot_id>")
def get_snapshot(run_id: str, snapshot_id: int) -> Response:
    with current().database.read() as session:
        _known_run(session, run_id)
        found = read_snapshot(session, run_id, snapshot_id) if snapshot_id < _FAR else None
    if found is None:
        raise Problem(
            404, f"run {run_id!r} has no snapshot {snapshot_id}: GET /api/v1/runs/{run_id}/snapshots lists them"
        )
    return json_answer(found)


@blueprint.get(f"{_V1}/runs/<run_id>/snapshots/<int:snapshot_id>/viewer")
def get_viewer(run_id: str, snapshot_id: int) -> Response:
    with current().database.read() as session:
        _known_run(session, run_id)
        found = viewer_of(session, run_id, snapshot_id) if snapshot_id < _FAR else None
    if found is None:
        raise Problem(404, f"run {run_id!r} has no snapshot {snapshot_id} with a page of torch's viewer")
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


@blueprint.get(f"{_V1}/runs/<run_id>/export")
def get_export(run_id: str) -> Response:
    query.choice("format", ("csv",))
    database = current().database
    with database.read() as session:
        _known_run(session, run_id)
    headers = {"Content-Disposition": "attachment; filename=run.csv"}
    return Response(csv_lines(database, run_id), mimetype="text/csv", headers=headers)


@blueprint.get(f"{_V1}/compare")
def get_comparison() -> Response:
    ids = query.run_ids("runs", fewest=FEWEST_RUNS, most=MOST_RUNS)
    context = current()
    with context.database.read() as session:
        runs = [_known_run(session, run_id) for run_id in ids]
        found = compare_runs(session, runs, public_url=context.settings.public_url)
    return json_answer(found)


@blueprint.post(f"{_V1}/estimate")
@permit("read")
def post_estimate() -> Response:
    asked = read_message(request, EstimateRequest)
    with current().database.read() as session:
        found = answer(session, asked)
    return json_answer(found)


@blueprint.get(f"{_V1}/contexts")
def get_contexts() -> Response:
    with current().database.read() as session:
        found = list_contexts(session)
    return json_answer({"contexts": found})


def _known_run(session: Session, run_id: str) -> Run:
    run = get_run(session, run_id)
    if run is None:
        raise UnknownRunError(run_id)
    return run
