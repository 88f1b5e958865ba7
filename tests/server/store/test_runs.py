"""Runs and ranks: start, resume, the worst status of ranks, lost contact."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import event, func, select

from memagent.errors import WireError
from memagent.wire.messages import Batch, Chunk, Device, Finish, RunStart
from memagent_server.store import ranks
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.models import Base, RankRow, RunRow, StreamRow
from memagent_server.store.runs import delete_run, finish_run, get_run, lose_contact, start_run
from memagent_server.store.samples import add_batch
from memagent_server.store.streams import current_streams

HOST = Device(
    id="host", kind="host", name="host (24.0 GiB)", limit_bytes=1000, limit_source="cgroup"
)


@pytest.fixture
def start(database):
    def start(run_id="r", now=10.0, **facts):
        with database.write() as session:
            run, created = start_run(
                session, RunStart(run_id=run_id, **({"devices": [HOST]} | facts)), now
            )
        return run, created

    return start


@pytest.fixture
def finish(database):
    def finish(status, rank=0, attempt=0, now=20.0, **facts):
        with database.write() as session:
            return finish_run(
                session, "r", Finish(status=status, rank=rank, attempt=attempt, **facts), now
            )

    return finish


def test_it_is_created_once_with_the_fields_of_rank_0(start):
    run, created = start(
        project="nlp",
        name="gpt",
        user="ana",
        host="box",
        tags=["a"],
        config={"lr": 0.1},
        total_steps=10,
        started_at=5.0,
    )
    assert created
    assert (run.project, run.name, run.user, run.host, run.tags, run.config) == (
        "nlp",
        "gpt",
        "ana",
        "box",
        ["a"],
        {"lr": 0.1},
    )
    assert (run.status, run.total_steps, run.created_at, run.started_at) == (
        "running",
        10,
        5.0,
        5.0,
    )
    again, created = start(project="nlp", name="gpt", now=11.0)
    assert not created
    assert again.created_at == 5.0


def test_a_run_without_a_name_has_its_id_as_name(start):
    assert start()[0].name == "r"


def test_other_ranks_do_not_rename_the_run(start):
    start(name="gpt", rank=0, world_size=2)
    assert start(name="other", rank=1, world_size=2)[0].name == "gpt"


def test_rank_0_names_a_run_that_another_rank_created(start):
    start(name="early", rank=1, world_size=2)
    assert start(name="gpt", rank=0, world_size=2)[0].name == "gpt"


def test_its_devices_become_streams(start, database):
    start()
    with database.read() as session:
        stream = session.scalars(select(StreamRow)).one()
    assert (stream.device, stream.kind, stream.name, stream.limit_bytes, stream.limit_source) == (
        "host",
        "host",
        "host (24.0 GiB)",
        1000,
        "cgroup",
    )


def test_it_ends_with_its_only_rank(start, finish):
    start()
    run = finish("completed", step=7, finished_at=19.0)
    assert (run.status, run.step, run.finished_at, run.error) == ("completed", 7, 19.0, None)


def test_it_ends_with_its_last_rank_and_the_worst_status(start, finish):
    for rank in range(3):
        start(rank=rank, world_size=3)
    assert finish("completed", rank=0).status == "running"
    assert finish("oom", rank=2, error="CUDA out of memory").status == "running"
    run = finish("failed", rank=1, error="killed")
    assert (run.status, run.error) == ("oom", "CUDA out of memory")


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        (("completed", "stopped"), "stopped"),
        (("stopped", "failed"), "failed"),  # torchrun stops the ranks beside one that failed
    ],
)
def test_a_stopped_rank_counts_unless_another_one_failed(start, finish, ends, status):
    for rank, _ in enumerate(ends):
        start(rank=rank, world_size=len(ends))
    for rank, end in enumerate(ends):
        run = finish(end, rank=rank)
    assert run.status == status


@pytest.mark.parametrize("order", [("failed", "oom"), ("oom", "failed"), ("completed", "oom")])
def test_a_rank_that_ends_twice_keeps_the_worse_status(start, finish, order):
    start()
    for status in order:
        run = finish(status)
    assert run.status == "oom"


def test_a_newer_attempt_resumes_the_run(start, finish, database):
    start(attempt=1)
    finish("failed", attempt=1, step=500)
    run, created = start(attempt=2)
    assert not created
    assert (run.status, run.finished_at, run.attempt, run.step) == ("running", None, 2, 0)
    with database.read() as session:
        assert [stream.attempt for stream in current_streams(session, ["r"])] == [2]
    assert finish("completed", attempt=2).status == "completed"


def test_a_resume_with_fewer_ranks_does_not_wait_for_the_old_ones(start, finish):
    for rank in range(2):
        start(rank=rank, attempt=10 + rank, world_size=2)
    start(rank=0, attempt=20)
    assert finish("completed", rank=0, attempt=20).status == "completed"


def test_ranks_of_a_launch_need_not_share_an_attempt(start, finish, database):
    """Each rank's attempt is the time at which it started, so they differ by milliseconds; a resume is a new launch for all."""
    for rank, attempt in ((0, 105), (1, 100), (0, 203), (1, 201)):
        start(rank=rank, attempt=attempt, world_size=2)
    with database.read() as session:
        current = session.execute(
            select(RankRow.rank, RankRow.attempt).where(RankRow.is_current).order_by(RankRow.rank)
        ).all()
    assert [tuple(row) for row in current] == [(0, 203), (1, 201)]
    finish("completed", rank=0, attempt=203)
    assert finish("completed", rank=1, attempt=201).status == "completed"


def test_late_messages_of_an_old_attempt_do_not_change_the_new_one(start, finish):
    start(attempt=1)
    start(attempt=2)
    assert finish("oom", attempt=1).status == "running"
    run, _ = start(attempt=1)
    assert (run.status, run.attempt) == ("running", 2)


def test_a_lost_run_that_sends_again_is_running(start, database):
    start()
    with database.write() as session:
        assert lose_contact(session, "r", 100.0).status == "lost_contact"
    with database.write() as session:
        add_batch(session, "r", Batch(seq=0), 110.0)
    with database.read() as session:
        run = get_run(session, "r")
    assert (run.status, run.finished_at, run.last_seen_at) == ("running", None, 110.0)


@pytest.mark.parametrize(
    ("limit_source", "used", "is_told"),
    [
        ("cgroup", 95, True),
        ("physical memory", 95, True),
        ("cgroup", 60, False),
        ("RLIMIT_DATA", 95, False),
    ],
)
def test_a_run_that_fell_silent_with_its_host_full_was_probably_killed_by_the_kernel(
    start, database, limit_source, used, is_told
):
    host = Device(
        id="host", kind="host", name="host", limit_bytes=100 * 2**30, limit_source=limit_source
    )
    start(devices=[host])
    columns = {"step": [7], "time_s": [1.0], "allocated_bytes": [used * 2**30]}
    with database.write() as session:
        add_batch(session, "r", Batch(seq=0, chunks=[Chunk(stream="host", columns=columns)]), 5.0)
    with database.write() as session:
        error = lose_contact(session, "r", 100.0).error
    if is_told:
        assert "out-of-memory killer: 95.00 GiB of 100 GiB" in error and "step 7" in error
    else:
        assert error is None
    with database.write() as session:
        add_batch(session, "r", Batch(seq=1), 110.0)
    with database.read() as session:
        assert get_run(session, "r").error is None


def test_a_rank_that_died_of_oom_outweighs_those_that_fell_silent_after_it(start, finish, database):
    for rank in range(2):
        start(rank=rank, world_size=2)
    finish("oom", rank=1)
    with database.write() as session:
        assert lose_contact(session, "r", 100.0).status == "oom"


def test_a_late_batch_does_not_reopen_a_finished_run(start, finish, database):
    start()
    finish("completed")
    with database.write() as session:
        add_batch(
            session, "r", Batch(seq=0, chunks=[Chunk(stream="host", columns={"step": [3]})]), 30.0
        )
    with database.read() as session:
        run = get_run(session, "r")
    assert (run.status, run.step) == ("completed", 3)


def test_a_run_that_ends_twice_alike_has_the_later_end(start, finish, database):
    """As one that was imported while it grew."""
    start()
    for at in (50.0, 90.0, 70.0):
        with database.write() as session:
            finish_run(session, "r", Finish(status="completed", finished_at=at), 100.0)
    with database.read() as session:
        assert get_run(session, "r").finished_at == 90.0


def test_unknown_runs_are_refused(database):
    with database.write() as session:
        for change in (
            lambda: finish_run(session, "no", Finish(status="oom"), 1.0),
            lambda: lose_contact(session, "no", 1.0),
        ):
            with pytest.raises(UnknownRunError, match="'no'"):
                change()


def test_deleting_a_run_deletes_all_its_rows(start, finish, database):
    start()
    with database.write() as session:
        chunk = Chunk(stream="host", columns={"step": [1]})
        add_batch(
            session, "r", Batch(seq=0, chunks=[chunk], dropped_samples={"queue_full": 1}), 30.0
        )
    with database.write() as session:
        assert delete_run(session, "r")
        assert not delete_run(session, "r")
    with database.read() as session:
        counts = {
            table.name: session.scalar(select(func.count()).select_from(table))
            for table in Base.metadata.sorted_tables
        }
    del counts["shards"]  # the workers', always there
    assert counts.pop("run_deletions") == 1  # for the tables of runs in memory
    assert set(counts.values()) == {0}, counts


def test_ranks_can_start_concurrently(database):
    ready = threading.Barrier(8)

    def start(rank):
        ready.wait()
        with database.write() as session:
            return start_run(
                session,
                RunStart(run_id="r", rank=rank, world_size=8, attempt=rank, devices=[HOST]),
                1.0,
            )[1]

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(start, range(8))) == 1
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(RunRow)) == 1
        assert (
            session.scalar(select(func.count()).select_from(RankRow).where(RankRow.is_current)) == 8
        )
        assert session.scalar(select(func.count()).select_from(StreamRow)) == 8


def test_a_run_has_a_bounded_number_of_ranks(start, monkeypatch):
    monkeypatch.setattr(ranks, "MAX_RANKS", 3)
    for rank in range(3):
        start(rank=rank)
    with pytest.raises(WireError, match="at most 3 ranks"):
        start(rank=3)
    with pytest.raises(WireError, match="at most 3 ranks"):
        start(attempt=1)
    assert start(rank=2)[0].status == "running"
    start("other", rank=3)


def test_a_rank_that_starts_or_ends_reads_no_other(start, finish):
    for rank in range(20):
        start(rank=rank)
    read = []

    def note(row, _context):
        read.append(row.rank)

    event.listen(RankRow, "load", note)
    try:
        start(rank=20)
        finish("completed", rank=5)
    finally:
        event.remove(RankRow, "load", note)
    assert read == [5]
