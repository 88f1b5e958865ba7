"""Sizes of CUDA contexts measured by agents, for predictions of later runs."""

from __future__ import annotations

from memagent.units import MIB
from memagent.wire.messages import Batch, Chunk, Device, Finish, RunStart
from memagent_server.store.cuda_contexts import context_of, measured_gpus, page_contexts
from memagent_server.store.runs import finish_run, lose_contact, start_run
from memagent_server.store.samples import add_batch

A100 = "NVIDIA A100-SXM4-80GB"


def live(
    database,
    run_id,
    context_bytes,
    *,
    name=A100,
    kind="cuda",
    at=1.0,
    end="completed",
    **environment,
):
    """One run on a GPU of that name, from its start to its end."""
    with database.write() as session:
        device = Device(id="GPU-1", kind=kind, name=name)
        start_run(session, RunStart(run_id=run_id, devices=[device], environment=environment), at)
        columns = {"step": [0, 1], "context_bytes": [None, context_bytes]}
        add_batch(
            session, run_id, Batch(seq=0, chunks=[Chunk(stream="GPU-1", columns=columns)]), at
        )
        if end == "lost":
            lose_contact(session, run_id, at)
        else:
            finish_run(session, run_id, Finish(status=end), at)


def measured(context):
    """The newest, lowest and highest measurement in MiB, and their number."""
    sizes = (context.newest_bytes, context.low_bytes, context.high_bytes)
    return (*(size // MIB for size in sizes), context.runs)


def test_without_measurements_no_context_is_known(database):
    with database.read() as session:
        assert context_of(session, A100) is None
        assert measured_gpus(session) == []


def test_ended_runs_record_the_context_of_their_gpu_driver_and_torch(database):
    live(database, "a", 480 * MIB, at=1.0, driver="550.1", torch="2.13.0")
    live(database, "b", 500 * MIB, at=2.0, driver="550.1", torch="2.13.0", end="oom")
    live(database, "c", 450 * MIB, at=3.0, driver="550.1", torch="2.13.0", end="lost")
    live(database, "d", 700 * MIB, at=4.0, driver="570.2", torch="2.13.0")
    with database.read() as session:
        assert measured(context_of(session, A100, "550.1", "2.13.0")) == (450, 450, 500, 3)
        assert measured(context_of(session, A100.lower())) == (700, 700, 700, 1)
        assert context_of(session, A100, "1.0") is None
        contexts = page_contexts(session, limit=10).contexts
        assert [(row.driver, row.runs) for row in contexts] == [("570.2", 1), ("550.1", 3)]
        assert measured_gpus(session) == [A100]


def test_a_repeated_finish_counts_once(database):
    live(database, "a", 480 * MIB)
    with database.write() as session:
        finish_run(session, "a", Finish(status="completed"), 2.0)
    with database.read() as session:
        assert context_of(session, A100).runs == 1


def test_a_host_and_a_gpu_without_a_reading_are_not_recorded(database):
    live(database, "a", 480 * MIB, kind="host")
    live(database, "b", None)
    with database.read() as session:
        assert measured_gpus(session) == []


def test_a_malformed_environment_is_accepted(database):
    live(database, "a", 480 * MIB, driver={"odd": ["x" * 500]}, torch=None)
    with database.read() as session:
        [row] = page_contexts(session, limit=10).contexts
    assert (row.torch, len(row.driver)) == ("unknown", 100)
