"""Choice of the OOM event that the report explains."""

from __future__ import annotations

import pytest

from memagent.wire.messages import Batch, Device, Event, Finish, RunStart
from memagent_server.compare import autopsy
from memagent_server.store.models import RunRow
from memagent_server.store.runs import finish_run, start_run
from memagent_server.store.samples import add_batch
from memagent_server.store.streams import current_streams


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
            report = autopsy(session, session.get_one(RunRow, "r"), stream)
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


def test_the_own_rank_is_preferred(dies, title):
    dies("forward", rank=0)
    dies("eval", rank=1)
    assert "forward" in title(0) and "eval" in title(1)


def test_a_rank_without_an_event_is_explained_by_the_others(dies, title):
    dies(None, rank=0)
    dies("eval", rank=1)
    assert "eval" in title(0)
