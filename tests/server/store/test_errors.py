"""Database problems by the errors of real databases, and recovery from them."""

from __future__ import annotations

import socket

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from memagent.wire.messages import RunStart
from memagent_server.store import engine, errors
from memagent_server.store.engine import Database
from memagent_server.store.runs import get_run, start_run


def write(database, run_id="r", **fields):
    with database.write() as session:
        start_run(session, RunStart(run_id=run_id, **fields), 1.0)


def trouble(database, **fields):
    """The trouble with writing to it."""
    with pytest.raises(DBAPIError) as caught:
        write(database, **fields)
    assert "\n" not in errors.reason_of(caught.value)
    assert "INSERT INTO" not in errors.reason_of(caught.value)
    return errors.problem_of(caught.value)


def on_its_connection(database, statement):
    """Run something on the one connection that the pool holds; it stays as that makes it."""
    with database.engine.connect() as connection:
        connection.execute(text(statement))
        connection.commit()


def test_a_connection_that_cannot_write_is_replaced(database):
    write(database)
    read_only = (
        "PRAGMA query_only = ON" if database.is_sqlite else "SET default_transaction_read_only = on"
    )
    on_its_connection(database, read_only)
    assert trouble(database) == errors.READ_ONLY
    write(database, "after")


def test_a_connection_on_which_one_of_a_group_cannot_write_is_replaced(sqlite_database):
    def work(connection):
        connection.execute(text("PRAGMA query_only = ON"))
        connection.execute(text("UPDATE runs SET name = 'new'"))

    with pytest.raises(DBAPIError) as caught:
        sqlite_database.write_grouped(work)
    assert errors.problem_of(caught.value) == errors.READ_ONLY
    write(sqlite_database)


def test_a_full_disk_is_reported(sqlite_database):
    on_its_connection(sqlite_database, "PRAGMA max_page_count = 1")  # no page more than there are
    assert trouble(sqlite_database, config={"long": "x" * 10**6}) == errors.DISK_FULL
    with sqlite_database.read() as session:
        assert get_run(session, "r") is None


def test_a_lock_timeout_is_a_busy_error(database_url, monkeypatch):
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0)
    database, other = Database(database_url), Database(database_url)
    write(database)
    with other.write() as session:
        if not database.is_sqlite:
            session.execute(text("LOCK TABLE runs IN EXCLUSIVE MODE"))
            on_its_connection(database, "SET lock_timeout = '10ms'")
        assert trouble(database) == errors.BUSY
    write(database)
    database.close()
    other.close()


@pytest.mark.parametrize(
    "scheme", ["sqlite:///{}/away.db", "postgresql+psycopg://postgres@/x?host={}"]
)
def test_an_unreachable_database_is_reported(scheme, tmp_path):
    database = Database(scheme.format(tmp_path / "nowhere"))
    assert trouble(database) == errors.UNAVAILABLE
    database.close()


def test_a_silent_postgresql_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        database = Database(f"postgresql+psycopg://postgres@127.0.0.1:{port}/x?connect_timeout=2")
        assert trouble(database) == errors.UNAVAILABLE
        database.close()


def test_a_file_that_is_not_a_database_is_reported(tmp_path):
    (tmp_path / "memagent.db").write_bytes(b"no database " * 1000)
    database = Database(f"sqlite:///{tmp_path}/memagent.db")
    assert trouble(database) == errors.DAMAGED
    database.close()


def test_a_programming_error_is_not_a_database_problem(database):
    with pytest.raises(DBAPIError) as caught, database.read() as session:
        session.execute(text("SELECT * FROM no_such_table"))
    assert errors.problem_of(caught.value) is None
    assert errors.problem_of(ValueError()) is None


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("state", "message", "problem"),
    [
        ("XX000", 'could not extend file "base/1/2": No space left on device', errors.DISK_FULL),
        ("XX000", "failure on connection marked as essential: node:5432", errors.UNAVAILABLE),
        ("XX000", "the postmaster was shut down", errors.UNAVAILABLE),
        ("XX000", "terminating connection due to administrator command", errors.UNAVAILABLE),
        ("57P01", "terminating connection due to administrator command", errors.UNAVAILABLE),
        ("XX000", "tuple concurrently updated", None),
    ],
)
def test_what_citus_hands_on_from_its_nodes_is_a_database_problem(
    postgres_url, state, message, problem
):
    code = f"DO $$ BEGIN RAISE EXCEPTION '{message}' USING ERRCODE = '{state}'; END $$"
    database = Database(postgres_url)
    with pytest.raises(DBAPIError) as caught, database.read() as session:
        session.execute(text(code))
    assert errors.problem_of(caught.value) == problem
    database.close()
