"""The routes that agents post to.

Each reads, checks, and stores in one transaction before it answers.
"""

from __future__ import annotations

import time

from flask import Blueprint, Flask, Response, current_app, request

from memagent.forecast.types import LEAK_CAUSES, PAGING_LEVELS
from memagent.wire.codec import REPLAYED_HEADER
from memagent.wire.messages import (
    Batch,
    BatchReply,
    Command,
    Finish,
    PredictionMessage,
    Risk,
    RunStart,
    SnapshotMessage,
)
from memagent_server.http import auth
from memagent_server.http.api_route import operation
from memagent_server.http.context import Context, current
from memagent_server.http.problems import json_answer
from memagent_server.ingest.batch_pace import pace_of
from memagent_server.ingest.body import read_message
from memagent_server.ingest.validate import check_batch, check_snapshot, check_start, storable
from memagent_server.observability import self_metrics
from memagent_server.schemas.base import Created
from memagent_server.schemas.runs import RunEnded, RunStarted
from memagent_server.store.engine import Connection, Database
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.events import pending_commands
from memagent_server.store.forecasts import latest_risk
from memagent_server.store.models import RankRow
from memagent_server.store.predecessors import find_predecessor
from memagent_server.store.predictions import add_prediction
from memagent_server.store.rehearsals import predict_by_rehearsal
from memagent_server.store.runs import finish_run, get_run, start_run
from memagent_server.store.samples import store_batch
from memagent_server.store.snapshots import add_snapshot, has_snapshot

FAILURE = "memagent.failure"
"""Key of a WSGI environment: what `direct` met in this request."""
blueprint = Blueprint("ingest", __name__, url_prefix="/api/v1/runs")


@blueprint.post("")
@operation(
    "agents",
    "ingest",
    {201: RunStarted, 200: RunStarted},
    body=RunStart,
    headers=("Location", REPLAYED_HEADER),
    problems=(409,),
)
def post_run() -> Response:
    """Create or resume a run; idempotent.

    Returns 201 for a new run, 200 for an existing one. Rank 0 sets name, config and tags.
    """
    context = current()
    message = check_start(read_message(request, RunStart))
    auth.check_project(message.project)
    with context.database.write() as session:
        run, created = start_run(session, message, context.clock(), live=_is_from_live_process())
        predict_by_rehearsal(session, message, context.clock())
        next_seq = session.get_one(RankRow, (run.id, message.rank, message.attempt)).next_seq
    # a transaction of its own: reading a curve mustn't keep writers waiting
    with context.database.read() as session:
        predecessor = find_predecessor(session, message)
    url = f"{context.settings.public_url}/runs/{run.id}"
    reply = RunStarted(run.id, url, next_seq, predecessor)
    return json_answer(reply, 201 if created else 200, {"Location": f"/api/v1/runs/{run.id}"})


@blueprint.post("/<run_id>/batches")
@operation("agents", "ingest", BatchReply, body=Batch, headers=(REPLAYED_HEADER,), problems=(409,))
def post_batch(run_id: str) -> Response:
    """Store the samples of a rank since its last batch; idempotent by (rank, attempt, seq).

    Acknowledged after the commit. The columns of a chunk have one length. `step` is required and
    must not decrease. Sizes and counts (`_bytes`, `_total`) are non-negative integers.
    """
    if FAILURE in request.environ:
        # pop: an error refers to its frames, these to the environment, and all to the body
        raise request.environ.pop(FAILURE)
    context = current()
    _check_visible(context.database, run_id)
    batch = read_message(request, Batch)
    length, live = request.content_length or 0, _is_from_live_process()
    return json_answer(receive(current_app, context, run_id, batch, live=live, sent_bytes=length))


def receive(
    app: Flask, context: Context, run_id: str, batch: Batch, *, live: bool, sent_bytes: int
) -> BatchReply:
    """Check and store a batch, count it, and return the reply to its agent."""
    batch, chunks = check_batch(batch)
    now, pace = context.clock(), pace_of(app)

    def store(connection: Connection) -> BatchReply:
        accepted = store_batch(connection, run_id, batch, now, chunks=chunks, live=live)
        risk = latest_risk(connection, run_id, batch.rank)
        commands = _diagnosis_commands(connection, run_id, batch, risk) if live else []
        if live and batch.rank == 0:
            commands += pending_commands(connection, run_id, batch.attempt)
        return BatchReply(
            accepted=accepted.samples,
            next_seq=accepted.next_seq,
            risk=risk,
            commands=commands,
            batch_every_s=pace.interval_of(risk),
        )

    started_at = time.perf_counter()
    reply = context.database.write_grouped(store)
    store_s = time.perf_counter() - started_at
    metrics: self_metrics.ServerMetrics = app.extensions[self_metrics.EXTENSION]
    metrics.count_batch(reply.accepted, sent_bytes, store_s, reply.batch_every_s)
    return reply


@blueprint.post("/<run_id>/predictions")
@operation("agents", "ingest", {201: Created}, body=PredictionMessage)
def post_prediction(run_id: str) -> Response:
    """Store an estimator's prediction; an identical one keeps its id."""
    context = current()
    message = storable(read_message(request, PredictionMessage))
    with context.database.write() as session:
        prediction = add_prediction(session, run_id, message, context.clock())
    return json_answer(Created(prediction.id), 201)


@blueprint.post("/<run_id>/snapshots")
@operation("agents", "ingest", {201: Created}, body=SnapshotMessage)
def post_snapshot(run_id: str) -> Response:
    """Store a snapshot of the holders of a rank's memory; idempotent by (rank, attempt, seq)."""
    context = current()
    message = check_snapshot(read_message(request, SnapshotMessage))
    with context.database.write() as session:
        snapshot = add_snapshot(session, run_id, message, context.clock())
    return json_answer(Created(snapshot.id), 201)


@blueprint.post("/<run_id>/finish")
@operation("agents", "ingest", RunEnded, body=Finish, headers=(REPLAYED_HEADER,))
def post_finish(run_id: str) -> Response:
    """End a rank. The run ends with its last rank, with the worst status of all ranks."""
    context = current()
    message = storable(read_message(request, Finish))
    with context.database.write() as session:
        run = finish_run(session, run_id, message, context.clock(), live=_is_from_live_process())
    return json_answer({"run_id": run.id, "status": run.status})


def _check_visible(database: Database, run_id: str) -> None:
    """Hide other projects' runs from a limited token: prepared batch statements don't filter."""
    if database.is_limited:
        with database.read() as session:
            if get_run(session, run_id) is None:
                raise UnknownRunError(run_id)


def _diagnosis_commands(
    connection: Connection, run_id: str, batch: Batch, risk: Risk | None
) -> list[Command]:
    """Request a leak diagnosis from a rank that is forecast to run out of memory.

    The request is repeated in every reply until a snapshot arrives. An agent ignores it while a
    diagnosis is running, or if it cannot run one.
    """
    if risk is None or risk.level not in PAGING_LEVELS or risk.cause not in LEAK_CAUSES:
        return []
    if has_snapshot(connection, run_id, batch.rank, batch.attempt):
        return []
    return [Command(kind="snapshot", data={"why": f"forecast to run out of memory: {risk.cause}"})]


def _is_from_live_process() -> bool:
    """Check that the sending process was alive; `memagent sync` marks what it uploads later."""
    return request.headers.get(REPLAYED_HEADER) != "1"
