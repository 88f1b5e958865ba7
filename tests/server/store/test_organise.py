"""Tags and the archive: what people do to runs, whatever their agents say afterwards."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from memagent.wire.messages import RunStart
from memagent_server.store.errors import UnknownRunError
from memagent_server.store.models import RunRow, RunTagRow
from memagent_server.store.run_list import MAX_TAGS, archive, change_tags
from memagent_server.store.runs import delete_run, get_run, start_run


@pytest.fixture
def tags(database):
    """The tags of a run as its row has them, and as they are filtered by."""

    def tags(run_id):
        with database.read() as session:
            rows = session.scalars(select(RunTagRow.tag).where(RunTagRow.run_id == run_id))
            return get_run(session, run_id).tags, sorted(rows)

    return tags


@pytest.fixture
def start(database):
    def start(run_id, **facts):
        with database.write() as session:
            start_run(session, RunStart(run_id=run_id, **facts), 1.0)

    return start


def test_an_agents_tags_can_be_filtered_by_and_follow_its_launches(start, tags):
    start("r", tags=["b", "a", "b"])
    assert tags("r") == (["b", "a"], ["a", "b"])
    start("r", tags=["c", "a"], attempt=1)
    assert tags("r") == (["c", "a"], ["a", "c"])


def test_tags_that_people_changed_outlive_the_next_launch(start, tags, database):
    start("r", tags=["a", "b"])
    start("s")
    with database.write() as session:
        change_tags(session, ["r", "s"], add=["best", "a"], remove=["b"])
    assert (tags("r"), tags("s")) == (
        (["a", "best"], ["a", "best"]),
        (["best", "a"], ["a", "best"]),
    )
    start("r", tags=["a", "b"], attempt=1)
    assert tags("r")[0] == ["a", "best"]


def test_tags_are_at_most_a_hundred(start, tags, database):
    start("r")
    with database.write() as session:
        change_tags(session, ["r"], add=[f"t{number:03}" for number in range(MAX_TAGS + 20)])
    assert [len(found) for found in tags("r")] == [MAX_TAGS, MAX_TAGS]


def test_runs_are_archived_and_taken_back(start, database):
    start("r")
    for is_archived in (True, False):
        with database.write() as session:
            archive(session, ["r"], is_archived=is_archived)
        with database.read() as session:
            assert session.get_one(RunRow, "r").is_archived is is_archived


def test_nothing_is_done_where_one_run_is_unknown(start, tags, database):
    start("r")
    with pytest.raises(UnknownRunError), database.write() as session:
        change_tags(session, ["r", "gone"], add=["x"])
    assert tags("r") == ([], [])


def test_a_deleted_run_takes_its_tags_along(start, database):
    start("r", tags=["a"])
    with database.write() as session:
        delete_run(session, "r")
    with database.read() as session:
        assert session.scalars(select(RunTagRow.tag)).all() == []
