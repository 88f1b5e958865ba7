"""Checkpoints truncate the write-ahead log during writes."""

from __future__ import annotations

import logging
import os

from sqlalchemy import insert, select

from memagent_server.store import sqlite
from memagent_server.store.engine import Database
from memagent_server.store.models import RunRow
from tests.waiting import wait_until

ROW = {
    "project": "p", "status": "running", "attempt": 0, "world_size": 1, "step": 0, "created_at": 1.0, "last_seen_at": 1.0,
    "config": {}, "tags": [], "environment": {}, "error": "x" * 8000,
}  # fmt: skip


def test_the_log_is_truncated_during_writes(sqlite_database, monkeypatch):
    monkeypatch.setattr(sqlite, "CHECKPOINT_BYTES", 256 * 1024)
    sqlite_database._checkpointer._start_bytes = 256 * 1024
    path = sqlite_database.engine.url.database
    largest = size = written = 0
    while size >= largest:
        largest = size
        add_run(sqlite_database, f"r{written}")
        written += 1
        size = os.path.getsize(path + "-wal")
        assert written < 20_000, "the log was never truncated"
    sqlite_database._checkpointer.close()
    # the thread may be done before the write that starts it is measured
    assert largest > 128 * 1024
    other = Database(sqlite_database.url)
    with other.read() as session:
        assert len(session.scalars(select(RunRow.id)).all()) == written
    other.close()


def test_a_long_reader_delays_the_checkpoint_but_no_writer(sqlite_database, monkeypatch, caplog):
    monkeypatch.setattr(sqlite, "CHECKPOINT_BYTES", 64 * 1024)
    sqlite_database._checkpointer._start_bytes = 64 * 1024
    with sqlite_database.read() as session, caplog.at_level(logging.WARNING):
        assert session.scalars(select(RunRow.id)).all() == []
        for number in range(60):
            add_run(sqlite_database, f"r{number}")
        assert session.scalars(select(RunRow.id)).all() == []
    wait_until(lambda: not sqlite_database._checkpointer._thread.is_alive())
    for number in range(10):
        add_run(sqlite_database, f"later-{number}")
    wait_until(lambda: os.path.getsize(sqlite_database.engine.url.database + "-wal") < 64 * 1024)
    with sqlite_database.read() as session:
        assert len(session.scalars(select(RunRow.id)).all()) == 70
    assert not caplog.records


def add_run(database, name):
    database.write_grouped(
        lambda connection: connection.execute(insert(RunRow), {**ROW, "id": name, "name": name})
    )
