"""The routes that agents post to. Each one reads, checks, stores in one transaction, and only then says that it did."""

from __future__ import annotations

import time

from flask import Blueprint, Response, request
from sqlalchemy import Connection

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
from memagent_server.http.context import current
from memagent_server.http.responses import json_answer
from memagent_server.ingest.body import read_message
from memagent_server.ingest.validate import check_batch, check_snapshot, check_start, storable
from memagent_server.observability import self_metrics
from memagent_server.schemas.common import Created
from memagent_server.schemas.runs import RunEnded, RunStarted
from memagent_server.store.engine import Database
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.forecasts import latest_risk
from memagent_server.store.models import Rank
from memagent_server.store.predictions import add_prediction
from memagent_server.store.runs import finish_run, get_run, start_run
from memagent_server.store.samples import take_batch
from memagent_server.store.snapshots import add_snapshot, has_snapshot

"""Causes for which there is a line to blame."""

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

    201 for a new one, 200 for one that is there. Rank 0 decides name, config and tags.
    """
    context = current()
    message = check_start(read_message(request, RunStart))
    auth.check_project(message.project)
    with context.database.write() as session:
        run, created = start_run(session, message, context.clock(), live=_is_live())
        next_seq = session.get_one(Rank, (run.id, message.rank, message.attempt)).next_seq
    url = f"{context.settings.public_url}/runs/{run.id}"
    said = {"run_id": run.id, "url": url, "next_seq": next_seq}
    return json_answer(said, 201 if created else 200, {"Location": f"/api/v1/runs/{run.id}"})


@blueprint.post("/<run_id>/batches")
@operation("agents", "ingest", BatchReply, body=Batch, headers=(REPLAYED_HEADER,), problems=(409,))
def post_batch(run_id: str) -> Response:
    """Store what a rank gathered since its last batch; idempotent by (rank, attempt, seq).

    Answered after the commit. In a chunk, columns are of one length, `step` is among them and does not go back; sizes and counts
    (`_bytes`, `_total`) are whole and not negative.
    """
    context = current()
    _check_seen(context.database, run_id)
    batch, chunks = check_batch(read_message(request, Batch))
    now, live = context.clock(), _is_live()

    def take(connection: Connection) -> BatchReply:
        accepted = take_batch(connection, run_id, batch, now, chunks=chunks, live=live)
        risk = latest_risk(connection, run_id, batch.rank)
        commands = _commands(connection, run_id, batch, risk) if live else []
        return BatchReply(
            accepted=accepted.samples, next_seq=accepted.next_seq, risk=risk, commands=commands
        )

    began = time.perf_counter()
    reply = context.database.together(take)
    self_metrics.current().count_batch(
        reply.accepted, request.content_length, time.perf_counter() - began
    )
    return json_answer(reply)


@blueprint.post("/<run_id>/predictions")
@operation("agents", "ingest", {201: Created}, body=PredictionMessage)
def post_prediction(run_id: str) -> Response:
    """Store an estimator's answer; the same one again keeps its id."""
    context = current()
    message = storable(read_message(request, PredictionMessage))
    with context.database.write() as session:
        prediction = add_prediction(session, run_id, message, context.clock())
    return json_answer({"id": prediction.id}, 201)


@blueprint.post("/<run_id>/snapshots")
@operation("agents", "ingest", {201: Created}, body=SnapshotMessage)
def post_snapshot(run_id: str) -> Response:
    """Store who holds the memory of a rank; idempotent by (rank, attempt, seq)."""
    context = current()
    message = check_snapshot(read_message(request, SnapshotMessage))
    with context.database.write() as session:
        snapshot = add_snapshot(session, run_id, message, context.clock())
    return json_answer({"id": snapshot.id}, 201)


@blueprint.post("/<run_id>/finish")
@operation("agents", "ingest", RunEnded, body=Finish, headers=(REPLAYED_HEADER,))
def post_finish(run_id: str) -> Response:
    """Say that a rank has ended; the run ends with the last of them, as the worst of them."""
    context = current()
    message = storable(read_message(request, Finish))
    with context.database.write() as session:
        run = finish_run(session, run_id, message, context.clock(), live=_is_live())
    return json_answer({"run_id": run.id, "status": run.status})


def _check_seen(database: Database, run_id: str) -> None:
    """A token that is limited to projects finds no other's run. The statements that store a batch are prepared, and look at no limits."""
    if database.is_limited:
        with database.read() as session:
            if get_run(session, run_id) is None:
                raise UnknownRunError(run_id)


def _commands(
    connection: Connection, run_id: str, batch: Batch, risk: Risk | None
) -> list[Command]:
    """What the rank is asked to do: to look who holds the memory, once it is forecast to grow until it runs out. Asked with each answer
    until a snapshot has come; an agent that looks already, or cannot, ignores it."""
    if risk is None or risk.level not in PAGING_LEVELS or risk.cause not in LEAK_CAUSES:
        return []
    if has_snapshot(connection, run_id, batch.rank, batch.attempt):
        return []
    return [Command(kind="snapshot", data={"why": f"forecast to run out of memory: {risk.cause}"})]


def _is_live() -> bool:
    """Whether the process that this is about was alive when it was sent; `memagent sync` says when it was not."""
    return request.headers.get(REPLAYED_HEADER) != "1"
