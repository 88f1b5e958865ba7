"""SIGKILL of the whole server in the middle of ingest: nothing acknowledged is lost, nothing is doubled after the retries.

1. A sender posts the batches of its rank one after another, and each again until it is acknowledged, as agents do.
2. Meanwhile the server is killed, all processes at once, and started again over the same database, several times.
3. In the end every batch is there exactly once, whether its acknowledgement got through or not.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import urllib3
from sqlalchemy import select

from memagent.wire.codec import encode
from memagent.wire.columns import pack
from memagent.wire.messages import Batch, Chunk, Event
from memagent_server.store.engine import Database
from memagent_server.store.models import Event as StoredEvent
from memagent_server.store.models import Stream
from memagent_server.store.samples import read_samples

RANKS = 4
BATCHES = 120
ROWS = 20
KILLS = 4


class Sender:
    """One rank's agent: in order, one at a time, again until it is acknowledged."""

    def __init__(self, port: int, rank: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/runs/r/batches"
        self._rank = rank
        self.acknowledged = 0
        self.retries = 0

    def run(self, stop: threading.Event) -> None:
        with urllib3.PoolManager(retries=False) as pool:
            for seq in range(BATCHES):
                body = encode(batch_of(self._rank, seq))
                while not self._post(pool, body, seq):
                    self.retries += 1
                    if stop.wait(0.02):
                        return
                self.acknowledged += 1

    def _post(self, pool: urllib3.PoolManager, body: bytes, seq: int) -> bool:
        try:
            answer = pool.request(
                "POST", self._url, body=body, headers={"Content-Type": "application/msgpack"}, timeout=10.0
            )
        except (urllib3.exceptions.HTTPError, OSError):
            return False
        assert answer.status == 200, answer.data
        assert answer.json()["next_seq"] == seq + 1
        return True


def batch_of(rank: int, seq: int) -> Batch:
    steps = list(range(seq * ROWS, (seq + 1) * ROWS))
    columns = {"step": steps, "allocated_bytes": [rank * 10**9 + step for step in steps]}
    events = [Event(kind="mark", step=steps[0])] if seq % 10 == 0 else []
    return Batch(rank=rank, seq=seq, chunks=[Chunk(stream="host", packed=pack(columns))], events=events)


@pytest.mark.slow
def test_it_loses_nothing_and_doubles_nothing(start_server, database_url):
    environ = {"MEMAGENT_DATABASE_URL": database_url}
    server = start_server("--role", "web", environ=environ)
    port = int(server.url.rpartition(":")[2])
    assert server.post("/api/v1/runs", {"run_id": "r", "world_size": RANKS}).status == 201
    senders = [Sender(port, rank) for rank in range(RANKS)]
    stop = threading.Event()
    with ThreadPoolExecutor(RANKS) as pool:
        work = [pool.submit(sender.run, stop) for sender in senders]
        try:
            for kill in range(1, KILLS + 1):
                wait_for_batches(senders, work, kill * RANKS * BATCHES // (KILLS + 2))
                server.kill()
                server = start_server("--role", "web", listen=f"127.0.0.1:{port}", environ=environ)
            for future in work:
                future.result(timeout=120)
        finally:
            stop.set()
    assert [sender.acknowledged for sender in senders] == [BATCHES] * RANKS
    assert sum(sender.retries for sender in senders) >= KILLS, "the server was never killed in the middle"
    server.stop()
    assert_everything_is_there_once(database_url)


def wait_for_batches(senders, work, count):
    while sum(sender.acknowledged for sender in senders) < count:
        for future in work:
            if future.done():
                future.result()
        time.sleep(0.002)


def assert_everything_is_there_once(url):
    database = Database(url)
    try:
        with database.read() as session:
            streams = {stream.rank: stream for stream in session.scalars(select(Stream))}
            assert set(streams) == set(range(RANKS))
            for rank, stream in streams.items():
                steps, sizes = [], []
                for _, columns in read_samples(session, stream.id):
                    steps += columns["step"]
                    sizes += columns["allocated_bytes"]
                assert steps == list(range(BATCHES * ROWS))
                assert sizes == [rank * 10**9 + step for step in steps]
                assert (stream.samples, stream.chunks, stream.last_step) == (
                    BATCHES * ROWS,
                    BATCHES,
                    BATCHES * ROWS - 1,
                )
            marks = sorted((event.rank, event.step) for event in session.scalars(select(StoredEvent)))
            assert marks == [(rank, seq * ROWS) for rank in range(RANKS) for seq in range(0, BATCHES, 10)]
    finally:
        database.close()
