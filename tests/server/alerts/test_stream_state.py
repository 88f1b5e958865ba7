"""Evaluation of a stream: late samples, long histories, hints, and SIGKILL at any write."""

from __future__ import annotations

import signal
import textwrap

import pytest
from sqlalchemy import func, select

from memagent.forecast import Hints, state
from memagent.wire.columns import pack
from memagent.wire.messages import Batch, Chunk, Device, RunStart
from memagent_server.alerts import evaluator
from memagent_server.alerts.arrival import ArrivalRate
from memagent_server.alerts.stream_state import start_evaluation
from memagent_server.store.compaction import compact_run
from memagent_server.store.evaluation import get_marks, heads_of_running
from memagent_server.store.history import (
    MAX_SUMMARIES,
    NEWEST_ROWS,
    SHORT_ROWS,
    StoredChunk,
    read_chunks,
)
from memagent_server.store.models import EvaluationMarkRow, ForecasterStateRow, NotificationRow
from memagent_server.store.packing import UNIT_ROWS
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch

GIB = 2**30
LIMIT = 40 * GIB
START = 1_000_000.0


def leak(step: int) -> float:
    return 10 + 0.02 * step


def chunk(first_s: float, last_s: float, received_at: float) -> StoredChunk:
    return StoredChunk(
        0, received_at, {"step": [int(first_s), int(last_s)], "time_s": [first_s, last_s]}
    )


@pytest.mark.parametrize(
    ("late_s", "every_s", "is_late"),
    [(1, 10, False), (3600, 10, False), (3600, 0.1, True), (30, 0.1, False)],
    ids=["on time", "a clock that is off", "catching up", "a short break"],
)
def test_4_a_stream_catches_up_when_samples_come_fast_and_late(late_s, every_s, is_late):
    arrival = ArrivalRate()
    for number in range(5):
        first = 10.0 * number
        arrival.update(
            chunk(first, first + 10, late_s + 50 + every_s * number + (0 if every_s < 1 else -40))
        )
    assert arrival.is_late is is_late
    assert arrival.step_s == pytest.approx(1.0)


def test_late_samples_wait_until_the_stream_has_caught_up(bench):
    bench.start()
    for number in range(14):
        bench.feed(100 * number, 100 * number + 100, leak, seq=number)
        bench.now = START + 3600 + number  # the agent was offline, and now sends what it kept
        with bench.database.write() as session:
            session.execute(_received(bench, number))
        bench.worker.evaluate()
    assert [alert.state for alert in bench.alerts()] == [
        "pending"
    ] and bench.notified_states() == []
    bench.feed(3601, 3621, lambda step: 39.0, seq=14)
    bench.worker.evaluate()
    (alert,) = bench.alerts()
    assert alert.state == "firing" and alert.data["step"] == 3620 and alert.first_step == 3620
    assert bench.notified_states() == ["firing"]


def test_an_alert_that_fired_and_was_averted_before_it_was_read_notifies_no_one(bench):
    bench.start()
    bench.feed(0, 1200, leak, seq=0)
    bench.feed(1200, 4200, lambda step: 20.0, seq=1)
    bench.worker.evaluate()
    (alert,) = bench.alerts()
    assert alert.state == "averted" and bench.notified_states() == []
    assert alert.summary.startswith("is no longer expected to run out of memory at step ")


def test_a_limit_that_falls_during_the_run_is_forecast_with(bench):
    bench.start()
    for number in range(8):
        limit = LIMIT if number < 4 else LIMIT // 8
        bench.feed(
            100 * number,
            100 * number + 100,
            lambda step: 1 + step / 150,
            seq=number,
            limit_bytes=limit,
        )
        bench.worker.evaluate()
        assert bool(bench.alerts()) == (number >= 4)
    assert "of 5.00 GiB used" in bench.alerts()[0].summary


def fill(bench, steps: int, gib, *, rows: int = 500) -> None:
    bench.start()
    bench.now = START + steps
    for first in range(0, steps, rows * 100):
        chunks = []
        for begin in range(first, min(first + rows * 100, steps), rows):
            numbers = list(range(begin, min(begin + rows, steps)))
            sizes = [int(gib(step) * GIB) for step in numbers]
            columns = {
                "step": numbers,
                "time_s": [START + step for step in numbers],
                "allocated_bytes": sizes,
            }
            chunks.append(Chunk(stream="host", packed=pack(columns)))
        with bench.database.write() as session:
            add_batch(session, "r", Batch(seq=first, chunks=chunks), bench.now)


def evaluation_of(bench):
    with bench.database.read() as session:
        (stream,) = heads_of_running(session)
        mark = get_marks(session, [stream.id]).get(stream.id)
        return start_evaluation(session, stream, LIMIT, Hints(), mark, is_secondary_host=False)


def test_1_a_long_history_is_summarized_with_its_trend(sqlite_database, make_settings, bench_on):
    bench = bench_on(
        sqlite_database, make_settings(sqlite_database.url, webhook_url="http://127.0.0.1:9/y")
    )
    steps = 60_000
    fill(bench, steps, lambda step: 10 + 28 * step / steps)
    evaluation = evaluation_of(bench)
    assert evaluation.read_seq + 1 == steps - NEWEST_ROWS
    assert 0 < evaluation.read_seq + 1 - evaluation.newest.step <= 500
    bench.worker.evaluate()
    (alert,) = bench.alerts()
    assert alert.state == "firing" and alert.data["cause"] == "leak"
    assert alert.data["eta_step"] == pytest.approx(steps * 30 / 28, rel=0.02)


def test_1_a_compacted_history_reads_the_same(sqlite_database, make_settings, bench_on):
    bench = bench_on(
        sqlite_database, make_settings(sqlite_database.url, webhook_url="http://127.0.0.1:9/y")
    )
    steps = 60_000
    fill(bench, steps, lambda step: 10 + 28 * step / steps)
    before = evaluation_of(bench)
    compact_run(bench.database, "r")
    after = evaluation_of(bench)
    assert (after.read_seq, after.newest.level) == (before.read_seq, before.newest.level)
    assert 0 < after.read_seq + 1 - after.newest.step <= UNIT_ROWS
    bench.worker.evaluate()
    (alert,) = bench.alerts()
    assert alert.data["eta_step"] == pytest.approx(steps * 30 / 28, rel=0.02)


def test_2_chunks_compacted_during_evaluation_are_read_once(bench):
    bench.start()
    for number in range(6):
        bench.feed(100 * number, 100 * number + 100, leak, seq=number)
        bench.worker.evaluate()
    compact_run(bench.database, "r")  # one of 512, and the rest
    for number in range(6, 12):
        bench.feed(100 * number, 100 * number + 100, leak, seq=number)
        bench.worker.evaluate()
    evaluation = bench.worker._evaluator._evaluations[1]
    assert evaluation.read_seq == 1199 and evaluation.newest.step == 1199
    assert bench.notified_states() == ["firing"]
    assert evaluation_of(bench).open_at_mark == evaluation.open_at_mark
    with bench.database.read() as session:
        (stream,) = heads_of_running(session)
        places = [chunk.first_seq for chunk in read_chunks(session, stream, 99)]
    assert places == [100, 512, 600, 700, 800, 900, 1000, 1100]


def test_1_a_short_history_is_read_in_full(sqlite_database, make_settings, bench_on):
    bench = bench_on(sqlite_database, make_settings(sqlite_database.url))
    fill(bench, SHORT_ROWS, lambda step: 10)
    assert evaluation_of(bench).read_seq == -1
    assert MAX_SUMMARIES < SHORT_ROWS


def test_1_a_new_stream_state_restores_the_stored_alert_states(bench):
    bench.start()
    bench.feed(0, 1200, leak, seq=0)
    bench.worker.evaluate()
    evaluation = evaluation_of(bench)
    assert evaluation.states["oom_forecast"].state == "firing" and evaluation.mark == 1199


@pytest.mark.parametrize("same_code", [True, False])
def test_a_new_worker_restores_the_forecasters_state(bench, monkeypatch, same_code):
    bench.start()
    bench.feed(0, 600, leak, seq=0)
    bench.worker.evaluate()
    stayed, bench.worker = bench.worker, bench.new_worker()
    if not same_code:
        monkeypatch.setattr(state, "_digest", lambda: b"another version!")
    read = []
    monkeypatch.setattr(
        evaluator,
        "start_evaluation",
        lambda *arguments, **options: read.append(1) or start_evaluation(*arguments, **options),
    )
    bench.feed(600, 700, leak, seq=1)
    bench.worker.evaluate()
    assert bool(read) is not same_code
    stayed.evaluate()
    (fresh,), (old,) = (
        worker._evaluator._evaluations.values() for worker in (bench.worker, stayed)
    )
    assert (
        fresh.newest == old.newest
        and fresh.read_seq == old.read_seq
        and fresh.arrival == old.arrival
    )
    bench.feed(700, 1200, leak, seq=2)
    bench.worker.evaluate()
    assert bench.alerts()[0].state == "firing" and bench.notified_states() == ["firing"]


def test_forecaster_states_are_deleted_when_the_run_ends(bench):
    bench.start()
    bench.feed(0, 600, leak, seq=0)
    bench.worker.evaluate()
    with bench.database.read() as session:
        assert session.scalar(select(func.count()).select_from(ForecasterStateRow)) == 1
    bench.finish("completed", 600)
    bench.now += evaluator.PRUNE_EVERY_S
    bench.worker.evaluate()
    with bench.database.read() as session:
        assert session.scalar(select(func.count()).select_from(ForecasterStateRow)) == 0


def test_a_lagging_worker_adopts_the_decisions_of_the_other(bench):
    slow = bench.new_worker()
    bench.start()
    bench.feed(0, 500, leak, seq=0)
    slow.evaluate()
    bench.feed(500, 1200, leak, seq=1)
    bench.worker.evaluate()
    for number in range(2, 30):
        bench.feed(1000 + 100 * number, 1100 + 100 * number, lambda step: 20.0, seq=number)
        bench.worker.evaluate()
    before = bench.notified_states()
    slow.evaluate()
    assert bench.notified_states() == before == ["firing", "averted"] and len(bench.alerts()) == 1


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from sqlalchemy import event
    from memagent_server.settings import Settings
    from memagent_server.store.engine import Database
    from memagent_server.worker import Worker
    database = Database(sys.argv[1])
    left, now = int(sys.argv[2]), float(sys.argv[3])

    def count(connection, cursor, statement, *_):
        global left
        left -= statement.lstrip().upper().startswith(("INSERT", "UPDATE"))
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(database.engine, "before_cursor_execute", count)
    settings = Settings(secret_key="k" * 32, database_url=sys.argv[1], webhook_url="http://127.0.0.1:9/y")
    Worker(database, settings, lambda: now).evaluate()
    """
)


@pytest.mark.parametrize("writes", [0, 1, 2, 3, 5, 8, 12])
def test_a_worker_that_is_killed_at_any_write_loses_and_repeats_nothing(
    bench, memagent_fork, writes
):
    with bench.database.write() as session:
        for rank in range(2):
            device = Device(id="gpu", kind="cuda", name="GPU", limit_bytes=LIMIT)
            start_run(
                session, RunStart(run_id="r", rank=rank, world_size=2, devices=[device]), bench.now
            )
    bench.worker.evaluate()
    steps = list(range(1200))
    bench.now = START + 1200
    for rank in range(2):
        columns = {
            "step": steps,
            "time_s": [START + step for step in steps],
            "allocated_bytes": [int(leak(step) * GIB) for step in steps],
        }
        with bench.database.write() as session:
            add_batch(
                session,
                "r",
                Batch(rank=rank, seq=0, chunks=[Chunk(stream="gpu", columns=columns)]),
                bench.now,
            )
    arguments = (bench.database.url, str(writes), str(bench.now))
    done = memagent_fork.run("-c", KILLED, *arguments)
    assert done.returncode == -signal.SIGKILL, done.stderr
    bench.worker = bench.new_worker()
    bench.worker.evaluate()
    assert len(bench.alerts()) == 2 and len(bench.incidents()) == 1
    assert bench.notified_states() == ["firing"]
    with bench.database.read() as session:
        assert session.scalar(select(func.count()).select_from(NotificationRow)) == len(
            bench.notified_states()
        ) + len(bench.notified_states("slack_webhook"))
        assert session.scalar(select(func.count()).select_from(EvaluationMarkRow)) == 2


def _received(bench, number: int):
    from sqlalchemy import update

    from memagent_server.store.models import ChunkRow

    return update(ChunkRow).where(ChunkRow.seq == 100 * number + 99).values(received_at=bench.now)
