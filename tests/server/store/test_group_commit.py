"""Concurrent writers share a transaction, and a failure affects its own writer only."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import event, func, insert, select
from sqlalchemy.exc import IntegrityError, OperationalError

from memagent_server.store.engine import Database
from memagent_server.store.errors import BusyError
from memagent_server.store.group_commit import GroupWriter
from memagent_server.store.models import DroppedRow, RunRow
from tests.waiting import wait_until


def run_row(name):
    return {
        "id": name, "project": "p", "name": name, "status": "running", "attempt": 0, "world_size": 1, "step": 0,
        "created_at": 1.0, "last_seen_at": 1.0, "config": {}, "tags": [], "environment": {},
    }  # fmt: skip


def add(name):
    """Work that adds a run, and says so."""

    def work(connection):
        connection.execute(insert(RunRow), run_row(name))
        return name

    return work


def names(database):
    with database.read() as session:
        return sorted(session.scalars(select(RunRow.id)))


@pytest.fixture
def crowd(sqlite_database):
    """Return crowd(*works), which submits all at once and returns their results or errors,
    and the number of transactions.
    """
    begun = []
    event.listen(sqlite_database.engine, "begin", lambda connection: begun.append(connection))

    def crowd(*works):
        with ThreadPoolExecutor(len(works)) as pool:
            with sqlite_database.write():
                futures = []
                for number, work in enumerate(works, start=1):
                    futures.append(pool.submit(sqlite_database.write_grouped, work))
                    wait_until(lambda number=number: waiting_writers(sqlite_database) >= number - 1)
                begun.clear()
            outcomes = [future.exception() or future.result() for future in futures]
        return outcomes, len(begun)

    return crowd


def waiting_writers(database):
    """Return the number of waiting writers. The first one leads and isn't counted."""
    return len(database._group_writer._waiting)


def test_waiting_writers_share_a_transaction(sqlite_database, crowd):
    outcomes, transactions = crowd(*[add(f"r{number}") for number in range(8)])
    assert outcomes == [f"r{number}" for number in range(8)]
    assert names(sqlite_database) == sorted(outcomes)
    assert transactions == 2  # the first led alone, the others followed together


def test_a_result_is_returned_after_the_commit(database):
    assert database.write_grouped(add("r")) == "r"
    other = Database(database.url)
    assert names(other) == ["r"]
    other.close()


def test_work_that_fails_before_any_change_fails_alone(sqlite_database, crowd):
    def ask(connection):
        raise LookupError(connection.scalar(select(func.count()).select_from(RunRow)))

    outcomes, transactions = crowd(add("a"), add("b"), ask, add("c"))
    assert [str(outcome) for outcome in outcomes] == ["a", "b", "2", "c"]
    assert names(sqlite_database) == ["a", "b", "c"] and transactions == 2


def test_work_that_fails_halfway_is_rolled_back_alone(sqlite_database, crowd):
    def half(connection):
        add("half")(connection)
        connection.execute(
            insert(DroppedRow),
            {"run_id": "nobody", "rank": 0, "attempt": 0, "reason": "x", "count": 1},
        )

    outcomes, _ = crowd(add("a"), add("b"), half, add("c"))
    assert [outcome for outcome in outcomes if isinstance(outcome, str)] == ["a", "b", "c"]
    assert isinstance(outcomes[2], IntegrityError)
    assert names(sqlite_database) == ["a", "b", "c"]


def test_a_failed_commit_fails_all_its_writers(sqlite_database, crowd):
    def owe(connection):
        connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")  # noticed at COMMIT only
        connection.execute(
            insert(DroppedRow),
            {"run_id": "nobody", "rank": 0, "attempt": 0, "reason": "x", "count": 1},
        )

    outcomes, _ = crowd(add("a"), add("b"), owe, add("c"))
    assert outcomes[0] == "a"  # committed before the others came
    assert all(isinstance(outcome, IntegrityError) for outcome in outcomes[1:])
    assert names(sqlite_database) == ["a"]
    assert sqlite_database.write_grouped(add("later")) == "later"


def test_a_full_disk_acknowledges_nothing(sqlite_database, crowd):
    def fill(connection):
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 4}")
        for number in range(1000):
            add(f"much-{number}" + 50 * "x")(connection)

    outcomes, _ = crowd(add("a"), add("b"), fill, add("c"))
    assert isinstance(outcomes[2], OperationalError) and "full" in str(outcomes[2])
    assert names(sqlite_database) == sorted(
        outcome for outcome in outcomes if isinstance(outcome, str)
    )
    assert not any(name.startswith("much") for name in names(sqlite_database))


def test_work_repeated_after_a_rollback_is_applied_once(sqlite_database, crowd):
    calls = []

    def counted(connection):
        calls.append("counted")
        return add("counted")(connection)

    def spoil(connection):
        add("spoiled")(connection)
        raise ValueError("half done")

    outcomes, _ = crowd(add("a"), counted, spoil)
    assert outcomes[:2] == ["a", "counted"] and isinstance(outcomes[2], ValueError)
    assert calls == ["counted", "counted"] and names(sqlite_database) == ["a", "counted"]


def test_too_many_waiting_writers_get_a_busy_error(sqlite_database):
    writer = GroupWriter(sqlite_database._begin, max_waiting=1)
    with ThreadPoolExecutor(2) as pool:
        with sqlite_database.write():
            leading = pool.submit(writer.run, add("a"))
            wait_until(lambda: writer._has_leader and not writer._waiting)
            waiting = pool.submit(writer.run, add("b"))
            wait_until(lambda: writer._waiting)
            with pytest.raises(BusyError, match="retry later"):
                writer.run(add("c"))
        assert (leading.result(), waiting.result()) == ("a", "b")
    assert names(sqlite_database) == ["a", "b"]


def test_no_writer_waits_longer_than_the_limit(sqlite_database):
    writer = GroupWriter(sqlite_database._begin, max_wait_s=0.05)
    with ThreadPoolExecutor(1) as pool:
        with sqlite_database.write():
            leading = pool.submit(writer.run, add("a"))
            wait_until(lambda: writer._has_leader and not writer._waiting)
            with pytest.raises(BusyError, match="Nothing could be written"):
                writer.run(add("b"))
        assert leading.result() == "a"
    assert names(sqlite_database) == ["a"]  # what was told to come again was not done


def test_concurrent_writers_of_two_engines_lose_nothing(sqlite_database):
    other = Database(sqlite_database.url)
    expected = [f"r{number}" for number in range(120)]

    def work(number):
        database = (sqlite_database, other)[number % 2]
        if number % 5 == 0:
            with database.write() as session:
                return add(f"r{number}")(session.connection())
        return database.write_grouped(add(f"r{number}"))

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(work, range(120))) == expected
    assert names(sqlite_database) == sorted(expected)
    other.close()


def test_writers_of_one_file_take_turns(sqlite_database):
    other = Database(sqlite_database.url)  # as another process: it opens the files itself
    order = []

    def second():
        with other.write():
            order.append("second")

    with sqlite_database.write():
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    other.close()
