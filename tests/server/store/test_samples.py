"""Batches are stored whole, once and in order, for any number of deliveries."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select

from memagent.errors import WireError
from memagent.wire.columns import pack
from memagent.wire.fields import scalar_kind_of
from memagent.wire.messages import Batch, Chunk, Event, RunStart
from memagent_server.store import models, streams
from memagent_server.store.errors import ConflictError, UnknownRunError
from memagent_server.store.runs import get_run, start_run
from memagent_server.store.samples import add_batch, read_samples, store_batch


@pytest.fixture
def run_id(database):
    with database.write() as session:
        start_run(session, RunStart(run_id="r"), 1.0)
    return "r"


@pytest.fixture
def send(database, run_id):
    def send(seq, steps=(), now=2.0, **facts):
        with database.write() as session:
            return add_batch(session, run_id, batch_of(seq, steps, **facts), now)

    return send


def batch_of(seq, steps=(), *, stream="host", **facts):
    steps = list(steps)
    columns = {
        "step": steps,
        "time_s": [100.0 + step for step in steps],
        "allocated_bytes": [1000 * step for step in steps],
    }
    return Batch(seq=seq, chunks=[Chunk(stream=stream, columns=columns)] if steps else [], **facts)


def stored(database):
    with database.read() as session:
        ids = session.scalars(select(models.StreamRow.id)).all()
        return sorted(
            step
            for stream_id in ids
            for _, columns in read_samples(session, stream_id)
            for step in columns["step"]
        )


def test_stored_samples_are_read_back_unchanged(database, send):
    assert send(0, range(3)).samples == 3
    send(1, range(3, 5))
    with database.read() as session:
        stream = session.scalars(select(models.StreamRow)).one()
        results = list(read_samples(session, stream.id))
        later = list(read_samples(session, stream.id, after_seq=2))
    assert [seq for seq, _ in results] == [2, 4]
    assert results[0][1] == {
        "step": [0, 1, 2],
        "time_s": [100.0, 101.0, 102.0],
        "allocated_bytes": [0, 1000, 2000],
    }
    assert later == results[1:]


def test_a_packed_chunk_is_stored_byte_for_byte(database, run_id):
    packed = pack({"step": [1, 2], "allocated_bytes": [5, None]}, codec="zlib")
    with database.write() as session:
        add_batch(session, run_id, Batch(seq=0, chunks=[Chunk(stream="host", packed=packed)]), 2.0)
    with database.read() as session:
        assert session.scalars(select(models.ChunkRow.packed)).one() == packed


def test_many_chunks_are_read_in_the_order_of_their_arrival(database, send):
    for seq in range(150):
        send(seq, [seq])
    with database.read() as session:
        stream = session.scalars(select(models.StreamRow)).one()
        assert [columns["step"] for _, columns in read_samples(session, stream.id)] == [
            [seq] for seq in range(150)
        ]


def test_the_stream_shows_its_newest_values_and_its_peak(database, send):
    send(0, [1, 9])
    send(1, [10])
    with database.read() as session:
        stream = session.scalars(select(models.StreamRow)).one()
    assert (stream.first_step, stream.last_step, stream.samples, stream.chunks) == (1, 10, 3, 2)
    assert (stream.peak_bytes, stream.last_sample_at) == (10_000, 110.0)
    assert stream.latest == {"step": 10, "time_s": 110.0, "allocated_bytes": 10_000}


def test_the_last_known_value_of_each_field_is_stored(database, run_id):
    first = {"step": [1, 2], "parameters_bytes": [7, None], "limit_bytes": [50, 60]}
    with database.write() as session:
        add_batch(session, run_id, Batch(seq=0, chunks=[Chunk(stream="host", columns=first)]), 2.0)
        add_batch(
            session,
            run_id,
            Batch(
                seq=1,
                chunks=[Chunk(stream="host", columns={"step": [3], "parameters_bytes": [None]})],
            ),
            3.0,
        )
    with database.read() as session:
        stream = session.scalars(select(models.StreamRow)).one()
    assert (stream.latest["parameters_bytes"], stream.latest["step"], stream.limit_bytes) == (
        7,
        3,
        60,
    )


def test_a_batch_updates_the_runs_step_and_last_seen_time(database, send):
    send(0, range(5), now=50.0)
    with database.read() as session:
        run = get_run(session, "r")
    assert (run.step, run.last_seen_at) == (4, 50.0)


def test_an_empty_batch_is_a_sign_of_life(database, send):
    assert send(0, now=60.0).samples == 0
    with database.read() as session:
        assert get_run(session, "r").last_seen_at == 60.0


def test_scalars_have_their_own_stream_and_any_value(database, run_id):
    columns = {
        "step": [1, 2, 3],
        "loss": [0.5, float("nan"), float("inf")],
        "cache_bytes": [0.25, -1.0, None],
    }
    chunk = Chunk(stream="scalars", packed=pack(columns, kind_of=scalar_kind_of))
    with database.write() as session:
        add_batch(session, run_id, Batch(seq=0, chunks=[chunk]), 2.0)
    with database.read() as session:
        stream = session.scalars(select(models.StreamRow)).one()
    assert (stream.kind, stream.peak_bytes) == ("scalars", None)
    assert stream.latest == {"step": 3, "loss": None, "cache_bytes": -1.0}


def test_an_unknown_stream_gets_its_kind_from_its_name(database, run_id):
    with database.write() as session:
        for seq, stream in enumerate(("host", "GPU-1", "scalars")):
            add_batch(session, run_id, batch_of(seq, [1], stream=stream), 2.0)
    with database.read() as session:
        kinds = {stream.device: stream.kind for stream in session.scalars(select(models.StreamRow))}
    assert kinds == {"host": "host", "GPU-1": "cuda", "scalars": "scalars"}


def test_events_and_dropped_counts_are_stored(database, send):
    send(
        0,
        events=[Event(kind="oom", step=3, time_s=5.0, data={"asked_bytes": 7})],
        dropped_samples={"queue_full": 3},
    )
    send(1, dropped_samples={"queue_full": 5, "rejected": 1})
    with database.read() as session:
        event = session.scalars(select(models.EventRow)).one()
        dropped = {row.reason: row.count for row in session.scalars(select(models.DroppedRow))}
    assert (event.kind, event.step, event.at, event.data) == ("oom", 3, 5.0, {"asked_bytes": 7})
    assert dropped == {"queue_full": 5, "rejected": 1}


def test_a_late_dropped_count_does_not_lower_the_count(database, send):
    send(1, dropped_samples={"queue_full": 5})
    send(0, dropped_samples={"queue_full": 3})
    with database.read() as session:
        assert session.scalars(select(models.DroppedRow.count)).one() == 5


def test_the_second_delivery_changes_nothing(database, send):
    first = send(0, range(10), events=[Event(kind="mark")])
    second = send(0, range(10), events=[Event(kind="mark")], now=99.0)
    assert not first.is_repeat
    assert second.is_repeat
    assert (second.samples, second.next_seq) == (first.samples, first.next_seq) == (10, 1)
    assert stored(database) == list(range(10))
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(models.EventRow)) == 1
        assert session.scalars(select(models.StreamRow)).one().samples == 10


def test_another_batch_under_the_same_key_is_refused(database, send):
    send(0, range(10))
    with pytest.raises(ConflictError, match="Batch 0 of rank 0"):
        send(0, range(11))
    assert stored(database) == list(range(10))


def test_the_same_seq_of_another_rank_or_attempt_is_another_batch(database, send):
    send(0, [1])
    send(0, [2], rank=1)
    send(0, [3], attempt=5)
    assert stored(database) == [1, 2, 3]


def test_next_seq_is_the_first_batch_that_is_missing(send):
    assert [send(seq).next_seq for seq in (0, 2, 3, 1, 5)] == [1, 1, 1, 4, 4]


def test_an_unreadable_batch_stores_nothing(database, run_id):
    good = Chunk(stream="host", columns={"step": [1]})
    bad = Chunk(stream="host", packed=b"MAC1 but no more")
    with pytest.raises(WireError), database.write() as session:
        add_batch(session, run_id, Batch(seq=0, chunks=[good, bad]), 2.0)
    with database.read() as session:
        for model in (models.BatchRow, models.StreamRow, models.ChunkRow, models.RankRow):
            expected = 1 if model is models.RankRow else 0
            assert session.scalar(select(func.count()).select_from(model)) == expected


def test_an_unknown_run_is_refused(database):
    with pytest.raises(UnknownRunError), database.write() as session:
        add_batch(session, "no", Batch(seq=0), 2.0)


def test_threads_that_send_the_same_batches_store_each_once(database, run_id):
    batches = [batch_of(seq, range(seq * 10, seq * 10 + 10), rank=seq % 3) for seq in range(30)]

    def send_all(seed):
        for batch in random.Random(seed).sample(batches, len(batches)):
            with database.write() as session:
                add_batch(session, run_id, batch, 2.0)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(send_all, range(6)))
    assert stored(database) == list(range(300))
    with database.read() as session:
        assert sum(session.scalars(select(models.StreamRow.samples))) == 300
        assert sum(session.scalars(select(models.StreamRow.chunks))) == 30


def test_a_late_batch_is_stored_and_reverts_nothing(database, send):
    assert send(1, range(10, 20), now=5.0).next_seq == 0
    assert send(0, range(10), now=9.0).next_seq == 2
    with database.read() as session:
        stream = session.scalars(select(models.StreamRow)).one()
        run = get_run(session, "r")
    assert (stream.first_step, stream.last_step, stream.samples, stream.chunks) == (0, 19, 20, 2)
    assert (stream.latest["step"], stream.latest["allocated_bytes"], stream.last_sample_at) == (
        19,
        19_000,
        119.0,
    )
    assert (run.step, run.last_seen_at) == (19, 9.0)
    assert stored(database) == list(range(20))


def test_overlapping_steps_are_stored_as_sent(database, send):
    """A rank can restart its count of steps without a new attempt: both parts are its samples."""
    send(0, range(10))
    send(1, range(5, 15))
    send(2, range(3))
    with database.read() as session:
        stream = session.scalars(select(models.StreamRow)).one()
    assert (stream.first_step, stream.last_step, stream.samples) == (0, 14, 23)
    assert stored(database) == sorted([*range(10), *range(5, 15), *range(3)])


def test_a_restarted_rank_has_new_streams_and_batches(database, send):
    send(0, range(100))
    send(0, range(50, 60), attempt=7)
    with database.read() as session:
        results = {stream.attempt: stream for stream in session.scalars(select(models.StreamRow))}
        run = get_run(session, "r")
    assert [(results[attempt].samples, results[attempt].is_current) for attempt in (0, 7)] == [
        (100, False),
        (10, True),
    ]
    assert (run.step, run.attempt) == (59, 7)
    send(1, range(100, 110))  # of the launch before: late, and no longer what is shown
    with database.read() as session:
        assert get_run(session, "r").step == 59
    assert len(stored(database)) == 120


@pytest.mark.parametrize("time_s", [0.0, 1.0, 4e9, 999_999_999_999.0])
def test_a_wrong_agent_clock_is_stored_but_not_used(database, run_id, time_s):
    columns = {
        "step": [1, 2, 3],
        "time_s": [time_s, time_s - 0.5, time_s],
        "allocated_bytes": [1, 2, 3],
    }
    with database.write() as session:
        add_batch(
            session,
            run_id,
            Batch(seq=0, chunks=[Chunk(stream="host", columns=columns)]),
            1_700_000_000.0,
        )
    with database.read() as session:
        stream = session.scalars(select(models.StreamRow)).one()
        [(_, result)] = read_samples(session, stream.id)
        assert get_run(session, "r").last_seen_at == 1_700_000_000.0
        assert session.scalars(select(models.ChunkRow.received_at)).one() == 1_700_000_000.0
    assert result["time_s"] == columns["time_s"]
    assert (stream.last_step, stream.latest["time_s"]) == (3, time_s)


def test_concurrent_ranks_store_each_batch_once(database, run_id):
    """Through the door that batches take: in one transaction with others' where the database is SQLite."""
    batches = [
        batch_of(seq, range(seq * 10, seq * 10 + 10), rank=rank)
        for seq in range(10)
        for rank in range(4)
    ]

    def send_all(seed):
        for batch in random.Random(seed).sample(batches, len(batches)):
            database.write_grouped(
                lambda connection, batch=batch: store_batch(connection, run_id, batch, 2.0)
            )

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(send_all, range(6)))
    assert stored(database) == sorted(4 * list(range(100)))
    with database.read() as session:
        assert {
            rank.rank: rank.next_seq for rank in session.scalars(select(models.RankRow))
        } == dict.fromkeys(range(4), 10)
        assert [stream.chunks for stream in session.scalars(select(models.StreamRow))] == [10] * 4


def test_a_rank_has_a_bounded_number_of_streams(database, send, monkeypatch):
    monkeypatch.setattr(streams, "MAX_STREAMS", 3)
    for seq, name in enumerate(["host", "a", "b"]):
        send(seq, [seq], stream=name)
    with pytest.raises(WireError, match="at most 3"):
        send(3, [3], stream="c")
    assert send(3, [3], stream="a").samples == 1
    assert send(0, [0], stream="c", attempt=1).samples == 1, "of each launch"
    assert stored(database) == [0, 0, 1, 2, 3]


def test_a_column_for_each_step_does_not_grow_the_stream(database, send, monkeypatch):
    monkeypatch.setattr(streams, "MAX_COLUMNS", 5)
    for seq in range(9):
        columns = {"step": [seq], "time_s": [1.0], f"loss_{seq}": [0.5], "lr": [0.1 * seq]}
        with database.write() as session:
            packed = pack(columns, kind_of=scalar_kind_of)
            batch = Batch(seq=seq, chunks=[Chunk(stream="scalars", packed=packed)])
            add_batch(session, "r", batch, 2.0)
    with database.read() as session:
        row = session.scalars(select(models.StreamRow)).one()
        newest = [columns for _, columns in read_samples(session, row.id)][-1]
    assert row.latest == {"step": 8, "time_s": 1.0, "loss_0": 0.5, "lr": 0.8, "loss_1": 0.5}
    assert newest["loss_8"] == [0.5], "the samples have all"
