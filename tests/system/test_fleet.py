"""Two servers and two workers on one PostgreSQL: no sample is lost or duplicated, and each leak is
notified once.
"""

from __future__ import annotations

import threading
import time

import pytest
from sqlalchemy import func, select

from memagent.wire.codec import encode
from memagent.wire.columns import pack
from memagent.wire.messages import Batch, Chunk, Device, Finish, RunStart
from memagent_server.store.engine import Database
from memagent_server.store.incidents import list_incidents
from memagent_server.store.models import SHARDS, ShardRow, StreamRow
from memagent_server.store.samples import read_samples
from tests.waiting import wait_until

GIB = 2**30
RUNS, BATCHES, ROWS = 6, 8, 150


def columns(seq: int) -> dict:
    """10 ms a step; from 10 GiB up by 20 MiB a step, towards 40 GiB."""
    steps, now = range(ROWS * seq, ROWS * seq + ROWS), time.time()
    return {
        "step": [*steps],
        "time_s": [now + (step - steps[-1]) / 100 for step in steps],
        "allocated_bytes": [10 * GIB + 20 * 2**20 * step for step in steps],
    }


def send(servers, number: int) -> None:
    """One run, as an agent sends it: each batch to one server, and every third once more to the other, as if its answer had been lost."""
    run_id = f"run-{number}"
    device = Device(id="gpu", kind="cuda", name="GPU", limit_bytes=40 * GIB)
    post(servers[number % 2], "", RunStart(run_id=run_id, devices=[device]))
    for seq in range(BATCHES):
        batch = Batch(seq=seq, chunks=[Chunk(stream="gpu", packed=pack(columns(seq)))])
        post(servers[(number + seq) % 2], f"/{run_id}/batches", batch)
        if seq % 3 == 0:
            post(servers[(number + seq + 1) % 2], f"/{run_id}/batches", batch)
        time.sleep(0.2)
    post(servers[number % 2], f"/{run_id}/finish", Finish(status="oom", step=BATCHES * ROWS))


def post(server, path: str, message) -> None:
    response = server.post(f"/api/v1/runs{path}", encode(message))
    assert response.status in (200, 201), response.body


@pytest.mark.postgres
@pytest.mark.slow
def test_two_servers_and_two_workers_on_one_postgresql_lose_and_duplicate_nothing(
    postgres_url, start_server, tmp_path
):
    environ = {"MEMAGENT_DATABASE_URL": postgres_url}
    servers = [
        start_server(environ=environ, data=tmp_path / name) for name in ("one", "two")
    ]  # each with a worker
    database = Database(postgres_url)

    def parts() -> list[int]:
        with database.read() as session:
            return list(
                session.scalars(
                    select(func.count())
                    .where(ShardRow.worker_id.is_not(None))
                    .group_by(ShardRow.worker_id)
                )
            )

    wait_until(lambda: parts() == [SHARDS // 2, SHARDS // 2], "each worker has half")
    agents = [threading.Thread(target=send, args=(servers, number)) for number in range(RUNS)]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.join()

    def ended() -> list[str]:
        with database.read() as session:
            result = list_incidents(session, limit=100).incidents
        return [item.run_id for item in result if item.severity != "note" and item.state == "oom"]

    wait_until(lambda: len(set(ended())) == RUNS, "every death is told")
    assert sorted(ended()) == [f"run-{number}" for number in range(RUNS)]
    with database.read() as session:
        for stream_id in session.scalars(select(StreamRow.id).where(StreamRow.kind == "cuda")):
            steps = [
                step for _, chunk in read_samples(session, stream_id) for step in chunk["step"]
            ]
            assert steps == list(range(BATCHES * ROWS))
    visible = [{run["id"] for run in server.get("/api/v1/runs").json["runs"]} for server in servers]
    assert visible[0] == visible[1] == {f"run-{number}" for number in range(RUNS)}
    database.close()
