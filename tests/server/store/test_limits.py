"""Sessions that see some projects only, whatever is asked of them and however."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, exists, func, select, update
from sqlalchemy.orm import aliased

from memagent.wire.messages import Batch, Chunk, Device, RunStart
from memagent_server.store.errors import ConflictError, UnknownRunError
from memagent_server.store.models import Chunk as ChunkRow
from memagent_server.store.models import Rank, Run, Stream
from memagent_server.store.runs import lock_run, start_run
from memagent_server.store.samples import add_batch


@pytest.fixture
def limited(database):
    """The database as seen by the project `vision`, which has the run `a`; `b` is of another."""
    for run_id, project in (("a", "vision"), ("b", "nlp")):
        with database.write() as session:
            start_run(
                session, RunStart(run_id=run_id, project=project, devices=[Device(id="D", kind="cuda", name="D")]), 1.0
            )
            add_batch(session, run_id, Batch(seq=0, chunks=[Chunk(stream="D", columns={"step": [1]})]), 2.0)
    return database.limited_to(("vision",))


ALIAS = aliased(Run)
QUESTIONS = {
    "entity": (select(Run), lambda rows: [row.id for (row,) in rows], ["a"]),
    "column": (select(Run.id), list, [("a",)]),
    "alias": (select(ALIAS.id), list, [("a",)]),
    "count": (select(func.count()).select_from(Run), list, [(1,)]),
    "sum of another table": (select(func.sum(Stream.samples)), list, [(1,)]),
    "group": (select(Run.project, func.count()).group_by(Run.project), list, [("vision", 1)]),
    "join": (select(Stream.run_id, Run.name).join(Run, Run.id == Stream.run_id), list, [("a", "a")]),
    "outer join": (select(Stream.run_id, Run.id).outerjoin(Run, Run.id == Stream.run_id), list, [("a", "a")]),
    "subquery": (select(func.count()).select_from(select(Stream, Run.id).join(Run).subquery()), list, [(1,)]),
    "in": (select(Rank.run_id).where(Rank.run_id.in_(select(Run.id))), list, [("a",)]),
    "exists": (select(exists().where(Run.id == "b")), list, [(False,)]),
    "scalar subquery": (select(select(func.count(Run.id)).scalar_subquery()), list, [(1,)]),
    "common table": (select(select(Run.id).cte().c.id), list, [("a",)]),
    "through a stream": (select(func.count(ChunkRow.seq)), list, [(1,)]),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_is_answered_from_the_projects_rows_only(limited, name):
    statement, read, expected = QUESTIONS[name]
    with limited.read() as session:
        assert read(session.execute(statement).all()) == expected


def test_a_key_of_another_project_finds_nothing(limited):
    with limited.read() as session:
        assert session.get(Run, "a") is not None and session.get(Run, "b") is None
        assert session.get(Rank, ("a", 0, 0)) is not None and session.get(Rank, ("b", 0, 0)) is None
        with pytest.raises(UnknownRunError):
            lock_run(session, "b")


def test_nothing_of_another_project_is_changed(limited, database):
    with limited.write() as session:
        assert session.execute(update(Run).values(name="mine")).rowcount == 1
        assert session.execute(delete(ChunkRow)).rowcount == 1
        assert session.execute(delete(Run).where(Run.id == "b")).rowcount == 0
    with database.read() as session:
        assert session.execute(select(Run.id, Run.name).order_by(Run.id)).all() == [("a", "mine"), ("b", "b")]
        assert session.scalar(select(func.count(ChunkRow.seq))) == 1


def test_an_id_that_is_taken_elsewhere_is_not_taken_over(limited, database):
    with pytest.raises(ConflictError, match="choose another"), limited.write() as session:
        start_run(session, RunStart(run_id="b", project="vision", name="mine"), 3.0)
    with database.read() as session:
        assert session.get_one(Run, "b").name == "b"
