"""Compaction of small chunks into large ones and rollups, under concurrency and SIGKILL."""

from __future__ import annotations

import random
import signal
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select

from memagent.wire.columns import pack
from memagent.wire.fields import scalar_kind_of
from memagent.wire.messages import Batch, Chunk, Finish, RunStart
from memagent_server.store import compaction, models
from memagent_server.store.compaction import compact_run, compact_some, find_tasks
from memagent_server.store.runs import delete_run, finish_run, start_run
from memagent_server.store.samples import add_batch, read_samples
from memagent_server.store.series import series

FLUSH = 16
LATER = 1e9


def columns_of(steps):
    rng = random.Random(steps[0])
    return {
        "step": list(steps),
        "time_s": [1e9 + 0.1 * step + rng.random() / 100 for step in steps],
        "step_s": [None if step == 0 else 0.1 + rng.random() / 100 for step in steps],
        "allocated_bytes": [10**10 + rng.randrange(10**9) for step in steps],
    }


@pytest.fixture
def send(database):
    """send(first, end, seq=0): steps in flushes of 16, ten in a batch; returns the next seq."""

    def send(first, end, *, seq=0):
        with database.write() as session:
            start_run(session, RunStart(run_id="r"), 1.0)
            for begin in range(first, end, 10 * FLUSH):
                flushes = range(begin, min(begin + 10 * FLUSH, end), FLUSH)
                steps = [range(flush, min(flush + FLUSH, end)) for flush in flushes]
                chunks = [Chunk(stream="host", columns=columns_of(each)) for each in steps]
                add_batch(session, "r", Batch(seq=seq, chunks=chunks), 1.0 + seq)
                seq += 1
        return seq

    return send


def all_samples(database):
    with database.read() as session:
        [stream] = session.scalars(select(models.StreamRow))
        results = {}
        for _, columns in read_samples(session, stream.id):
            for name, values in columns.items():
                results.setdefault(name, []).extend(values)
    return results


def chunk_rows(database):
    with database.read() as session:
        return list(session.scalars(select(models.ChunkRow.rows).order_by(models.ChunkRow.seq)))


def end(database):
    with database.write() as session:
        finish_run(session, "r", Finish(status="completed"), 2.0)


def test_1_the_newest_samples_of_a_running_run_are_not_compacted(database, send):
    send(0, 1200)
    before = all_samples(database)
    assert compact_some(database, LATER)
    assert chunk_rows(database) == [512, 512, *[FLUSH] * 11]  # 1024 is a multiple of 16
    assert all_samples(database) == before
    assert not compact_some(database, LATER)


def test_1_an_ended_run_is_compacted_and_rolled_up_completely(database, send):
    send(0, 1200)
    before = all_samples(database)
    end(database)
    compact_run(database, "r")
    assert chunk_rows(database) == [512, 512, 176]
    assert all_samples(database) == before
    with database.read() as session:
        assert find_tasks(session, LATER) == []
        [stream] = session.scalars(select(models.StreamRow))
        assert (stream.compacted_seq, stream.rolled_seq, stream.is_compacted) == (1199, 1199, True)
        assert set(session.scalars(select(models.ChunkRow.stats))) == {b""}


def test_1_a_run_that_ended_recently_is_not_compacted(database, send):
    send(0, 100)
    end(database)
    with database.read() as session:
        assert find_tasks(session, 100.0) and not find_tasks(session, 60.0)


def test_1_late_samples_of_a_compacted_run_are_compacted(database, send):
    seq = send(0, 600)
    end(database)
    compact_run(database, "r")
    send(600, 700, seq=seq)
    before = all_samples(database)
    compact_run(database, "r")
    assert chunk_rows(database) == [512, 88, 100]
    assert all_samples(database) == before
    with database.read() as session:
        assert series(session, "r", fields=["allocated_bytes"], points=10).samples == 700


def test_1_chunks_are_split_in_their_middle_and_where_steps_decrease(database):
    def chunk(first, end):
        return Chunk(stream="host", columns=columns_of(range(first, end)))

    with database.write() as session:
        start_run(session, RunStart(run_id="r"), 1.0)
        for seq, steps in enumerate([(0, 300), (300, 1500), (1400, 1450), (1500, 1600)]):
            add_batch(session, "r", Batch(seq=seq, chunks=[chunk(*steps)]), 1.0)
    before = all_samples(database)
    compact_some(database, LATER)
    assert chunk_rows(database) == [
        512,
        512,
        476,
        50,
        100,
    ]  # what came late begins anew, and goes on to 1600
    end(database)
    compact_run(database, "r")
    assert chunk_rows(database) == [512, 512, 476, 150]
    assert all_samples(database) == before
    with database.read() as session:
        result = series(session, "r", fields=["allocated_bytes"], points=2000)
    assert result.step == sorted(result.step) and len(result.step) == 1650


def test_1_scalars_with_other_names_in_each_flush_are_compacted_too(database):
    losses = [(step, {"loss" if step % 2 else "a/b": step / 3}) for step in range(700)]
    with database.write() as session:
        start_run(session, RunStart(run_id="r"), 1.0)
        chunks = []
        for step, named in losses:
            columns = {
                "step": [step],
                "time_s": [1.0 * step],
                **{name: [value] for name, value in named.items()},
            }
            chunks.append(Chunk(stream="scalars", packed=pack(columns, kind_of=scalar_kind_of)))
        for seq in range(7):
            add_batch(session, "r", Batch(seq=seq, chunks=chunks[100 * seq : 100 * seq + 100]), 1.0)
    compact_some(database, LATER)
    assert chunk_rows(database)[0] == 512
    result = all_samples(database)
    assert result["a/b"][:512:2] == [step / 3 for step in range(0, 512, 2)]
    assert result["loss"][:512:2] == [None] * 256


def test_2_a_repeated_batch_is_recognized_after_compaction(database, send):
    send(0, 600)
    compact_run(database, "r")
    before = all_samples(database)
    send(0, 600)
    assert all_samples(database) == before


@pytest.fixture
def short_units(monkeypatch):
    """Chunks of 20 samples, blocks of two buckets: five levels of 400 samples."""
    monkeypatch.setattr("memagent_server.store.packing.UNIT_ROWS", 20)
    monkeypatch.setattr("memagent_server.store.compaction.UNIT_ROWS", 20)
    monkeypatch.setattr("memagent_server.store.compaction.MIN_ROLLUP_ROWS", 60)
    monkeypatch.setattr("memagent_server.store.rollups.BLOCK_BUCKETS", 2)


WINDOWS = ((None, None), (0, 399), (19, 20), (33, 377), (395, None), (None, 3))


def check_charts(database, samples):
    for points in (10, 15, 1000):
        for first, last in WINDOWS:
            with database.read() as session:
                result = series(
                    session, "r", fields=["allocated_bytes"], points=points, first=first, last=last
                )
            part, of = (
                samples[first or 0 : 400 if last is None else last + 1],
                result.series["allocated_bytes"],
            )
            assert (result.samples, min(of.min), max(of.max), of.last[-1]) == (
                len(part), min(part), max(part), part[-1],
            ), (points, first, last)  # fmt: skip
            assert len(result.step) <= points and result.step == sorted(result.step)


def test_3_charts_of_rollups_equal_those_of_samples(database, send, short_units):
    send(0, 400)
    samples = all_samples(database)["allocated_bytes"]
    for _ in range(2):
        compact_some(database, LATER)  # in the midst of it
        compact_some(database, LATER)
        check_charts(database, samples)
    end(database)
    compact_run(database, "r")
    check_charts(database, samples)
    with database.read() as session:
        buckets = select(models.RollupRow.level, func.sum(models.RollupRow.buckets)).group_by(
            models.RollupRow.level
        )
        assert dict(session.execute(buckets).all()) == {0: 20, 1: 10, 2: 5, 3: 3, 4: 2}


def test_4_two_workers_compact_each_chunk_once(database, send):
    send(0, 3000)
    before = all_samples(database)
    end(database)
    with database.read() as session:
        [due] = find_tasks(session, LATER)
    assert compaction.compact(database, due)
    assert not compaction.compact(database, due)  # it no longer stands where it was read
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: compact_run(database, "r"), range(4)))
    assert all_samples(database) == before
    assert chunk_rows(database) == [512] * 5 + [440]


def test_4_samples_that_arrive_during_compaction_are_preserved(database, send):
    send(0, 700)
    with database.read() as session:
        [due] = find_tasks(session, LATER)
    send(700, 900, seq=5)
    before = all_samples(database)
    assert compaction.compact(database, due)
    assert all_samples(database) == before and len(before["step"]) == 900


def test_4_a_run_deleted_during_compaction_stays_deleted(database, send):
    send(0, 700)
    with database.read() as session:
        [due] = find_tasks(session, LATER)
    with database.write() as session:
        delete_run(session, "r")
    assert not compaction.compact(database, due)
    assert chunk_rows(database) == []


def test_a_damaged_chunk_is_not_changed_and_the_others_are_compacted(database, send, caplog):
    seq = send(0, 512)
    send(512, 1100, seq=seq)
    with database.write() as session:
        session.execute(
            models.ChunkRow.__table__.update()
            .where(models.ChunkRow.seq == 31)
            .values(packed=b"MAC1 no more")
        )
    end(database)
    compact_run(database, "r")
    assert chunk_rows(database) == [16, 16, 512, 512, 44]
    assert "is left as it is" in caplog.text


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from sqlalchemy import event
    from memagent_server.store.compaction import compact_run
    from memagent_server.store.engine import Database
    database, left = Database(sys.argv[1]), int(sys.argv[2])

    def count(connection, cursor, statement, *_):
        global left
        left -= statement.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE"))
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(database.engine, "before_cursor_execute", count)
    compact_run(database, "r")
    """
)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("writes", [0, 2, 4, 7])
def test_4_a_worker_that_is_killed_at_any_write_leaves_every_sample_once(
    database, send, memagent_fork, writes
):
    send(0, 1000)
    before = all_samples(database)
    end(database)
    done = memagent_fork.run("-c", KILLED, database.url, str(writes))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert all_samples(database) == before
    compact_run(database, "r")
    assert all_samples(database) == before
    assert chunk_rows(database) == [512, 488]
