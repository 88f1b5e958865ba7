"""The backup commands of docs/deployment.md, run while batches arrive.

The copy opens and contains the batches acknowledged before.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from pathlib import Path

import pytest

from memagent.wire.messages import Batch, Chunk, RunStart
from memagent_server.store import migrate
from memagent_server.store.engine import Database
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch
from memagent_server.store.series import series

DOCS = Path(__file__).parents[2] / "docs" / "deployment.md"
BEFORE = 20
ROWS = 10


@pytest.fixture
def busy(database):
    """A database that keeps taking batches of ten steps, of which the first twenty were acknowledged."""
    with database.write() as session:
        start_run(session, RunStart(run_id="r"), 1.0)
    stop, has_batches = threading.Event(), threading.Event()

    def ingest():
        seq = 0
        while not stop.is_set() and seq < 2000:
            steps = list(range(seq * ROWS, (seq + 1) * ROWS))
            columns = {
                "step": steps,
                "time_s": [float(step) for step in steps],
                "allocated_bytes": steps,
            }
            with database.write() as session:
                add_batch(
                    session,
                    "r",
                    Batch(seq=seq, chunks=[Chunk(stream="host", columns=columns)]),
                    1.0,
                )
            seq += 1
            if seq == BEFORE:
                has_batches.set()

    thread = threading.Thread(target=ingest)
    thread.start()
    assert has_batches.wait(60.0)
    yield database
    stop.set()
    thread.join()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sqlite_is_backed_up_while_samples_arrive(busy, tmp_path):
    _run_documented("backup(", tmp_path)
    _check_copy(f"sqlite:///{tmp_path / 'copy.db'}")


@pytest.mark.postgres
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_postgresql_is_backed_up_while_samples_arrive(busy, postgres_cluster, tmp_path):
    with postgres_cluster.database() as copy:
        _run_documented("pg_dump", tmp_path, DATABASE=_libpq(busy.url), COPY=_libpq(copy))
        _check_copy(copy)


def _libpq(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql://")


def _run_documented(word: str, folder: Path, **variables: str) -> None:
    """Run the block of commands that holds `word`."""
    blocks = re.findall(r"^```sh\n(.*?)^```", DOCS.read_text(), flags=re.MULTILINE | re.DOTALL)
    [commands] = [block for block in blocks if word in block]
    done = subprocess.run(
        ["sh", "-e", "-c", commands],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _check_copy(url: str) -> None:
    """Check the schema of the copy, and that it has all acknowledged samples without a gap."""
    copy = Database(url)
    try:
        assert migrate.is_current(copy)
        with copy.read() as session:
            result = series(session, "r", fields=["allocated_bytes"], points=10_000_000)
        assert result.samples >= BEFORE * ROWS
        assert result.step == result.series["allocated_bytes"].last == list(range(result.samples))
    finally:
        copy.close()
