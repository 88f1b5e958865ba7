"""Routes that programs read: those of docs/http.md that neither `ingest` nor `api_*` has."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone

from flask import Blueprint, Response, current_app

import memagent
from memagent.filters.parser import parse
from memagent.wire.sample_stream import MEDIA_TYPE as SAMPLES
from memagent_server.compare import compare_runs, components
from memagent_server.compare.runs import MAX_RUNS, MIN_RUNS
from memagent_server.http import openapi
from memagent_server.http.api_route import operation
from memagent_server.http.context import current
from memagent_server.http.problems import Problem, chart_answer, json_answer, only, page_answer
from memagent_server.schemas import base, predictions, queries, run_groups, runs, snapshots
from memagent_server.store.alerts import list_alerts
from memagent_server.store.console import console_of
from memagent_server.store.engine import Session
from memagent_server.store.errors import DatabaseError, UnknownRunError
from memagent_server.store.events import list_events
from memagent_server.store.export import MIMETYPES, ExportError, export_by_process, require
from memagent_server.store.forecasts import forecasts_of
from memagent_server.store.leases import count_alive
from memagent_server.store.models import RunRow
from memagent_server.store.predictions import page_predictions
from memagent_server.store.rank_grid import rank_grid
from memagent_server.store.run_groups import group_runs
from memagent_server.store.run_list import RunQuery, list_runs
from memagent_server.store.runs import get_run
from memagent_server.store.sample_stream import SampleQuery, sample_frames
from memagent_server.store.series import series
from memagent_server.store.snapshots import page_snapshots, read_snapshot, suspects_of, viewer_of
from memagent_server.store.summaries import describe
from memagent_server.web import query
from memagent_server.web.downloads import begin_download

blueprint = Blueprint("api", __name__)

_V1 = "/api/v1"
_MAX_ID = 2**62
_OPENAPI = "memagent_openapi"
_VIEWER_CHUNK_BYTES = 2**20


# -- the server ----------------------------------------------------------------------------------


@blueprint.get("/openapi.json")
@operation("operation", None, base.JsonObject)
def get_openapi() -> Response:
    """Return this document."""
    document = current_app.extensions.get(_OPENAPI)
    if document is None:
        document = current_app.extensions[_OPENAPI] = openapi.build_document(current_app)
    return json_answer(document)


@blueprint.get("/healthz")
@operation("operation", None, base.Health)
def get_health() -> Response:
    """Check that the process answers."""
    response = json_answer(base.Health("ok", memagent.__version__))
    # granian sends no Date, and `memagent doctor` compares clocks by it
    response.date = datetime.now(timezone.utc)
    return response


@blueprint.get("/readyz")
@operation("operation", None, base.Ready)
def get_readiness() -> Response:
    """Check that the database answers and its schema is current; 503 with the reason if not."""
    from memagent_server.store import migrate  # with alembic, a sixth of a web process's start

    try:
        is_current = migrate.is_current(current().database)
    except DatabaseError as error:
        raise Problem(503, "The database does not answer.", headers={"Retry-After": "5"}) from error
    if not is_current:
        raise Problem(
            503,
            "The database schema has another version. Run `memagent db upgrade`.",
            headers={"Retry-After": "5"},
        )
    with current().database.read() as session:
        return json_answer(base.Ready("ready", count_alive(session, current().clock())))


# -- runs ----------------------------------------------------------------------------------------


@blueprint.get(f"{_V1}/runs")
@operation("runs", "read", runs.RunPage, query=queries.RunsQuery)
def get_runs() -> Response:
    """List runs, with filters and an order, one page at a time."""
    params, context = query.read(queries.RunsQuery), current()
    filters = replace(_filters(params), sort=params.sort, limit=params.limit, cursor=params.cursor)
    with context.database.read() as session:
        page = list_runs(
            session, filters, columns=params.columns or "", public_url=context.settings.public_url
        )
    return page_answer(page, params.fields)


@blueprint.get(f"{_V1}/groups")
@operation("runs", "read", run_groups.RunGroups, query=queries.GroupsQuery)
def get_groups() -> Response:
    """Group runs by up to three columns, with figures of others."""
    params = query.read(queries.GroupsQuery)
    filters = replace(_filters(params), limit=params.limit)
    with current().database.read() as session:
        groups = group_runs(
            session, filters, params.by, columns=params.columns or "", order=params.sort
        )
    return json_answer(groups)


def _filters(params: queries.RunFilters) -> RunQuery:
    return RunQuery(
        project=params.project,
        status=params.status,
        tag=params.tag,
        q=params.q,
        where=parse(params.where) if params.where else None,
        is_archived=params.archived == "1",
    )


@blueprint.get(f"{_V1}/runs/<run_id>")
@operation("runs", "read", runs.Run, query=queries.RunFieldsQuery)
def get_one_run(run_id: str) -> Response:
    """Return one run: its settings, streams, newest events and alerts."""
    params, context = query.read(queries.RunFieldsQuery), current()
    with context.database.read() as session:
        run = _require_run(session, run_id)
        alerts = list_alerts(session, run_id=run_id).alerts
        settings = context.settings
        described = describe(
            session, run, alerts, settings.gpu_prices, public_url=settings.public_url
        )
    return json_answer(only(described, params.fields))


@blueprint.get(f"{_V1}/runs/<run_id>/series")
@operation("runs", "read", runs.Series, query=queries.SeriesQuery)
def get_series(run_id: str) -> Response:
    """Return samples for a chart.

    If the window has more samples than points, neighbors share a bucket that keeps their minimum
    and maximum, so that no spike is lost.
    """
    params = query.read(queries.SeriesQuery)
    with current().database.read() as session:
        chart = series(
            session,
            run_id,
            fields=params.fields,
            rank=params.rank,
            device=params.device,
            attempt=params.attempt,
            first=params.first,
            last=params.last,
            points=params.points,
        )
        if not chart.samples:
            _require_run(session, run_id)
    return chart_answer(chart)


@blueprint.get(f"{_V1}/runs/<run_id>/ranks")
@operation("runs", "read", runs.RankGrid, query=queries.RanksQuery)
def get_ranks(run_id: str) -> Response:
    """Return all ranks of the newest launch over the same steps, for a heat map."""
    params = query.read(queries.RanksQuery)
    with current().database.read() as session:
        _require_run(session, run_id)
        grid = rank_grid(
            session,
            run_id,
            field=params.field,
            first=params.first,
            last=params.last,
            columns=params.points,
        )
    return chart_answer(grid)


@blueprint.get(f"{_V1}/runs/<run_id>/forecast")
@operation("runs", "read", predictions.Forecasts, query=queries.ForecastQuery)
def get_forecast(run_id: str) -> Response:
    """Return whether and when the run is expected to run out of memory."""
    params = query.read(queries.ForecastQuery)
    with current().database.read() as session:
        _require_run(session, run_id)
        page = forecasts_of(session, run_id, limit=params.limit, cursor=params.cursor)
    return page_answer(page)


@blueprint.get(f"{_V1}/runs/<run_id>/predictions")
@operation("runs", "read", predictions.PredictionPage, query=queries.Paged)
def get_predictions(run_id: str) -> Response:
    """List the estimators' predictions for the run, newest first."""
    params = query.read(queries.Paged)
    with current().database.read() as session:
        _require_run(session, run_id)
        page = page_predictions(session, run_id, limit=params.limit, cursor=params.cursor)
    return page_answer(page)


@blueprint.get(f"{_V1}/runs/<run_id>/components")
@operation("runs", "read", predictions.Components)
def get_components(run_id: str) -> Response:
    """Compare predicted with observed memory, component by component."""
    with current().database.read() as session:
        compared = components(session, run_id)
    if compared is None:
        raise UnknownRunError(run_id)
    return json_answer(compared)


@blueprint.get(f"{_V1}/runs/<run_id>/suspects")
@operation("runs", "read", snapshots.Suspects)
def get_suspects(run_id: str) -> Response:
    """List the suspected leaks of the newest snapshots, most certain first."""
    with current().database.read() as session:
        _require_run(session, run_id)
        suspects = suspects_of(session, run_id)
    return json_answer(snapshots.Suspects(run_id, suspects))


@blueprint.get(f"{_V1}/runs/<run_id>/snapshots")
@operation("runs", "read", snapshots.SnapshotPage, query=queries.Paged)
def get_snapshots(run_id: str) -> Response:
    """List snapshots of the memory's holders, newest first."""
    params = query.read(queries.Paged)
    with current().database.read() as session:
        _require_run(session, run_id)
        page = page_snapshots(session, run_id, limit=params.limit, cursor=params.cursor)
    return page_answer(page)


@blueprint.get(f"{_V1}/runs/<run_id>/snapshots/<int:snapshot_id>")
@operation("runs", "read", snapshots.SnapshotDetail)
def get_snapshot(run_id: str, snapshot_id: int) -> Response:
    """Return one snapshot with its stacks and tensors."""
    with current().database.read() as session:
        _require_run(session, run_id)
        snapshot = read_snapshot(session, run_id, snapshot_id) if snapshot_id < _MAX_ID else None
    if snapshot is None:
        raise Problem(
            404,
            f"Run {run_id!r} has no snapshot {snapshot_id}. "
            f"GET /api/v1/runs/{run_id}/snapshots lists them.",
        )
    return json_answer(snapshot)


@blueprint.get(f"{_V1}/runs/<run_id>/snapshots/<int:snapshot_id>/viewer")
@operation("runs", "read", str, media=("text/html",))
def get_viewer(run_id: str, snapshot_id: int) -> Response:
    """Download PyTorch's interactive page of a snapshot; 404 if the snapshot has none."""
    with current().database.read() as session:
        _require_run(session, run_id)
        stored = viewer_of(session, run_id, snapshot_id) if snapshot_id < _MAX_ID else None
    if stored is None:
        raise Problem(
            404, f"Run {run_id!r} has no snapshot {snapshot_id} with a page of PyTorch's viewer."
        )
    snapshot, packed = stored
    name = f"{run_id}-step{snapshot.step}-rank{snapshot.rank}.html"
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        # An agent's HTML: the sandbox keeps it from ever running as a page of this server.
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    return Response(_decompress(packed), mimetype="text/html", headers=headers)


def _decompress(packed: bytes) -> Iterator[bytes]:
    decompressor = zlib.decompressobj()
    while packed and not decompressor.eof:
        yield decompressor.decompress(packed, _VIEWER_CHUNK_BYTES)
        packed = decompressor.unconsumed_tail


@blueprint.get(f"{_V1}/runs/<run_id>/events")
@operation("runs", "read", runs.EventPage, query=queries.EventsQuery)
def get_events(run_id: str) -> Response:
    """List the events of a run, newest first."""
    params = query.read(queries.EventsQuery)
    with current().database.read() as session:
        _require_run(session, run_id)
        page = list_events(
            session, run_id, kind=params.kind, limit=params.limit, cursor=params.cursor
        )
    return page_answer(page)


@blueprint.get(f"{_V1}/runs/<run_id>/console")
@operation("runs", "read", runs.Console, query=queries.ConsoleQuery)
def get_console(run_id: str) -> Response:
    """Return the last lines that a rank has printed, with secrets masked by its agent."""
    params = query.read(queries.ConsoleQuery)
    with current().database.read() as session:
        _require_run(session, run_id)
        console = console_of(session, run_id, rank=params.rank, last=params.last)
    return json_answer(console)


@blueprint.get(f"{_V1}/runs/<run_id>/export")
@operation(
    "runs", "read", str, query=queries.ExportQuery, media=tuple(MIMETYPES.values()), problems=(501,)
)
def get_export(run_id: str) -> Response:
    """Stream all samples of a run."""
    file_format = query.read(queries.ExportQuery).format
    database = current().database
    with database.read() as session:
        _require_run(session, run_id)
    try:
        require(file_format)
    except ExportError as error:
        raise Problem(501, str(error)) from error
    download = begin_download(export_by_process(database.url, run_id, file_format))
    headers = {"Content-Disposition": f"attachment; filename={run_id}.{file_format}"}
    return Response(download, mimetype=MIMETYPES[file_format], headers=headers)


@blueprint.get(f"{_V1}/runs/<run_id>/samples")
@operation("runs", "read", str, query=queries.SamplesQuery, media=(SAMPLES,))
def get_samples(run_id: str) -> Response:
    """Stream the stored chunks of a run's samples, whole and packed, for fast readers.

    A window is exact to the chunk.
    """
    params = query.read(queries.SamplesQuery)
    database = current().database
    with database.read() as session:
        _require_run(session, run_id)
    samples = SampleQuery(params.stream == "scalars", params.ranks, params.first, params.last)
    frames = sample_frames(database, run_id, samples, with_zstd=params.codec == "zstd")
    return Response(begin_download(frames), mimetype=SAMPLES)


@blueprint.get(f"{_V1}/compare")
@operation("runs", "read", runs.Comparison, query=queries.CompareQuery, problems=(404,))
def get_comparison() -> Response:
    """Compare runs: their figures, and the settings and environments in which they differ."""
    ids, context = query.read(queries.CompareQuery).runs, current()
    if len(set(ids)) < MIN_RUNS:
        raise Problem(
            422, f"runs: name {MIN_RUNS} to {MAX_RUNS} runs, separated by commas.", field="runs"
        )
    with context.database.read() as session:
        rows = [_require_run(session, run_id) for run_id in dict.fromkeys(ids)]
        comparison = compare_runs(session, rows, public_url=context.settings.public_url)
    return json_answer(comparison)


def _require_run(session: Session, run_id: str) -> RunRow:
    run = get_run(session, run_id)
    if run is None:
        raise UnknownRunError(run_id)
    return run
