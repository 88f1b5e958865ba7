"""Two worker processes on one database. One is killed while runs leak; the other's clock is adjusted."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from sqlalchemy import func, select

from memagent.wire.messages import Batch, Chunk, Device, Finish, RunStart
from memagent_server.store.alerts import list_alerts
from memagent_server.store.models import SHARDS, ForecastRow, NotificationRow, ShardRow, WorkerRow
from memagent_server.store.runs import finish_run, start_run
from memagent_server.store.samples import add_batch
from tests.waiting import PATIENCE_S, wait_until

GIB = 2**30
RUNS = [f"run-{number}" for number in range(10)]


@pytest.fixture
def receiver():
    """A webhook that stores its messages: (key, run, state)."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.got.append((self.headers["Idempotency-Key"], body["run_id"], body["to_state"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.got, server.url = [], f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def start_worker(database, receiver, tmp_path):
    """start_worker(name): a process; the file `name` contains the offset of its wall clock in seconds."""
    processes = []

    def start(name: str) -> subprocess.Popen:
        (tmp_path / name).write_text("0")
        command = [
            sys.executable,
            str(Path(__file__).with_name("worker_with_offset.py")),
            database.url,
            receiver.url,
        ]
        processes.append(subprocess.Popen([*command, str(tmp_path / name)]))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def set_clock(file, offset_s: str) -> None:
    """Replace atomically: the worker may read the file at any moment."""
    new = file.with_suffix(".new")
    new.write_text(offset_s)
    new.replace(file)


def parts(database) -> list[int]:
    with database.read() as session:
        query = (
            select(func.count()).where(ShardRow.worker_id.is_not(None)).group_by(ShardRow.worker_id)
        )
        return sorted(session.scalars(query))


def feed(database, seq: int) -> None:
    """The next 200 steps of every run, 10 ms each: from 10 GiB by 20 MiB per step, towards 40 GiB."""
    steps = range(200 * seq, 200 * seq + 200)
    for run_id in RUNS:
        now = time.time()
        columns = {
            "step": [*steps],
            "time_s": [now + (step - steps[-1]) / 100 for step in steps],
            "allocated_bytes": [10 * GIB + 20 * 2**20 * step for step in steps],
        }
        with database.write() as session:
            add_batch(
                session, run_id, Batch(seq=seq, chunks=[Chunk(stream="gpu", columns=columns)]), now
            )


def test_each_alert_is_raised_once_when_one_of_two_workers_is_killed(
    database, receiver, start_worker, tmp_path
):
    device = Device(id="gpu", kind="cuda", name="GPU", limit_bytes=40 * GIB)
    for run_id in RUNS:
        with database.write() as session:
            start_run(session, RunStart(run_id=run_id, devices=[device]), time.time())
    killed, survivor = start_worker("killed"), start_worker("survivor")
    wait_until(lambda: parts(database) == [SHARDS // 2, SHARDS // 2], "each has half of the work")
    for seq in range(6):
        feed(database, seq)
        if seq == 2:
            killed.kill()
            killed.wait()
        set_clock(tmp_path / "survivor", "3600" if seq == 3 else "-3600" if seq == 4 else "0")
        time.sleep(0.5)
    wait_until(
        lambda: {run_id for _, run_id, state in receiver.got if state == "firing"} == set(RUNS),
        "all are told",
    )
    assert parts(database) == [SHARDS]
    for run_id in RUNS:
        with database.write() as session:
            finish_run(session, run_id, Finish(status="oom", step=1200), time.time())
    wait_until(
        lambda: {run_id for _, run_id, state in receiver.got if state == "oom"} == set(RUNS),
        "all ends are told",
    )
    survivor.terminate()
    assert survivor.wait(PATIENCE_S) == 0
    with database.read() as session:
        webhooks = [
            alert.run_id
            for alert in list_alerts(session, limit=100).alerts
            if alert.severity != "note"
        ]
        forecasts = Counter(session.execute(select(ForecastRow.stream_id, ForecastRow.step)).all())
        keys = Counter(session.scalars(select(NotificationRow.dedup_key)))
        assert session.scalar(select(func.count()).select_from(WorkerRow)) == 0
    assert sorted(webhooks) == sorted(RUNS)
    assert set(forecasts.values()) == {1}
    assert {key for key, _, _ in receiver.got} == set(keys)
    assert parts(database) == []
