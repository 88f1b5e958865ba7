"""Comparison of runs, and the choice of the OOM event that the report explains."""

from __future__ import annotations

import pytest

from memagent.wire.messages import Batch, Chunk, Device, Event, Finish, PredictionMessage, RunStart
from memagent_server.compare import compare_runs, oom_report_of
from memagent_server.compare.runs import MAX_DIFFERENCES, differences
from memagent_server.store.models import RunRow
from memagent_server.store.predictions import add_prediction
from memagent_server.store.runs import finish_run, get_run, start_run
from memagent_server.store.samples import add_batch
from memagent_server.store.streams import current_streams


@pytest.fixture
def tell(sqlite_database):
    """tell(run_id, {(rank, stream): columns}, **facts of the start)"""

    def tell(run_id, streams, *, limit_bytes=1000, **facts):
        with sqlite_database.write() as session:
            for seq, ((rank, stream), readings) in enumerate(streams.items()):
                devices = (
                    []
                    if stream == "scalars"
                    else [Device(id=stream, kind="cuda", name=stream, limit_bytes=limit_bytes)]
                )
                start_run(
                    session,
                    RunStart(run_id=run_id, rank=rank, world_size=2, devices=devices, **facts),
                    1.0,
                )
                steps = list(range(len(next(iter(readings.values())))))
                columns = {"step": steps, "time_s": [float(step) for step in steps], **readings}
                add_batch(
                    session,
                    run_id,
                    Batch(rank=rank, seq=seq, chunks=[Chunk(stream=stream, columns=columns)]),
                    2.0,
                )

    return tell


@pytest.fixture
def compare(sqlite_database):
    def compare(*run_ids):
        with sqlite_database.read() as session:
            return compare_runs(session, [get_run(session, run_id) for run_id in run_ids])

    return compare


def test_only_what_differs_is_listed():
    same = {"lr": 1, "model": {"depth": 2, "act": {"name": "gelu"}}}
    other = {"lr": 1, "model": {"depth": 3, "act": {"name": "gelu"}}, "new": None, "empty": {}}
    assert differences([same, other]) == {"model.depth": [2, 3], "empty": [None, {}]}
    assert differences([same, same, same]) == {}


def test_the_number_of_differences_is_limited():
    assert (
        len(differences([{f"k{n}": n for n in range(2 * MAX_DIFFERENCES)}, {}])) == MAX_DIFFERENCES
    )


def test_configs_and_environments_are_compared(tell, compare):
    readings = {"allocated_bytes": [1, 1]}
    tell("a", {(0, "D"): readings}, config={"lr": 1, "batch": 8}, environment={"torch": "2.12"})
    tell("b", {(0, "D"): readings}, config={"lr": 1, "batch": 16}, environment={"torch": "2.13"})
    result = compare("b", "a")
    assert result.config_differences == {"batch": [16, 8]}
    assert result.environment_differences == {"torch": ["2.13", "2.12"]}


def test_the_fullest_rank_represents_its_run(tell, compare, sqlite_database):
    tell(
        "a",
        {(0, "D0"): {"allocated_bytes": [100, 120]}, (1, "D1"): {"allocated_bytes": [700, 800]}},
    )
    tell("b", {(0, "D0"): {"allocated_bytes": [100, 120]}}, limit_bytes=None)
    with sqlite_database.write() as session:
        add_prediction(
            session,
            "a",
            PredictionMessage(method="trace", rank=1, device="D1", peak_allocated_bytes=600),
            3.0,
        )
    first, second = compare("a", "b").runs
    assert (first.rank, first.device, first.headroom_bytes, first.residual_bytes) == (
        1,
        "D1",
        200,
        200,
    )
    assert (second.rank, second.headroom_bytes, second.residual_bytes) == (0, None, None)


def test_the_time_of_a_step_is_the_median(tell, compare):
    tell("a", {(0, "D"): {"allocated_bytes": [1] * 5, "step_s": [0.5, 0.5, 60.0, 0.5, None]}})
    tell("b", {(0, "D"): {"allocated_bytes": [1] * 5}})
    assert [run.step_s for run in compare("a", "b").runs] == [0.5, None]


def test_scalars_are_listed_and_the_token_counter_is_recognized(tell, compare):
    tell(
        "a",
        {
            (0, "D"): {"allocated_bytes": [1]},
            (0, "scalars"): {"loss": [1.0], "num_input_tokens_seen": [512]},
        },
    )
    tell("b", {(0, "D"): {"allocated_bytes": [1]}, (0, "scalars"): {"loss": [1.0]}})
    first, second = compare("a", "b").runs
    assert (first.scalars, first.tokens_scalar) == (
        ["loss", "num_input_tokens_seen"],
        "num_input_tokens_seen",
    )
    assert (second.scalars, second.tokens_scalar) == (["loss"], None)


@pytest.fixture
def dies(database):
    """dies(phase, rank=0, attempt=0): a rank starts and ends, with an OOM event if it has a phase."""

    def dies(phase: str | None, *, rank: int = 0, attempt: int = 0) -> None:
        host = Device(id="host", kind="host", name="host", limit_bytes=1)
        events = [Event(kind="oom", step=4, data={"phase": phase})] if phase else []
        with database.write() as session:
            start_run(
                session,
                RunStart(run_id="r", rank=rank, attempt=attempt, world_size=2, devices=[host]),
                1.0,
            )
            add_batch(session, "r", Batch(rank=rank, attempt=attempt, seq=0, events=events), 1.0)
            finish_run(session, "r", Finish(status="oom", rank=rank, attempt=attempt, step=4), 1.0)

    return dies


@pytest.fixture
def title(database):
    """title(rank): title of the report for a rank's device, None without a report."""

    def title(rank: int = 0) -> str | None:
        with database.read() as session:
            stream = next(
                (stream for stream in current_streams(session, ["r"]) if stream.rank == rank), None
            )
            report = oom_report_of(session, session.get_one(RunRow, "r"), stream)
            return report.title if report else None

    return title


def test_the_newest_launch_counts(dies, title):
    dies("forward")
    dies("backward", attempt=1)
    assert title() == "Out of memory in backward of step 5"


def test_a_launch_without_an_event_is_not_explained_by_an_earlier_one(dies, title):
    dies("forward")
    dies(None, attempt=1)
    assert title() is None


def test_the_event_of_the_same_rank_is_preferred(dies, title):
    dies("forward", rank=0)
    dies("eval", rank=1)
    assert "forward" in title(0) and "eval" in title(1)


def test_a_rank_without_an_event_is_explained_by_the_others(dies, title):
    dies(None, rank=0)
    dies("eval", rank=1)
    assert "eval" in title(0)
