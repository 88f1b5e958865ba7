"""Sessions limited to projects, for every kind of statement."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, exists, func, select, update
from sqlalchemy.orm import aliased

from memagent.wire.messages import Batch, Chunk, Device, RunStart
from memagent_server.store.errors import ConflictError, UnknownRunError
from memagent_server.store.models import ChunkRow, RankRow, RunRow, StreamRow
from memagent_server.store.runs import lock_run, start_run
from memagent_server.store.samples import add_batch


@pytest.fixture
def limited(database):
    """Return the database limited to the project `vision` with the run `a`; `b` is of another."""
    for run_id, project in (("a", "vision"), ("b", "nlp")):
        with database.write() as session:
            start_run(
                session,
                RunStart(
                    run_id=run_id, project=project, devices=[Device(id="D", kind="cuda", name="D")]
                ),
                1.0,
            )
            add_batch(
                session,
                run_id,
                Batch(seq=0, chunks=[Chunk(stream="D", columns={"step": [1]})]),
                2.0,
            )
    return database.limited_to(("vision",))


ALIAS, RANK = aliased(RunRow), aliased(RankRow)
NEWEST = (
    select(func.max(RankRow.attempt))
    .where(RankRow.run_id == RunRow.id)
    .correlate(RunRow)
    .scalar_subquery()
)
QUESTIONS = {
    "entity": (select(RunRow), lambda rows: [row.id for (row,) in rows], ["a"]),
    "column": (select(RunRow.id), list, [("a",)]),
    "alias": (select(ALIAS.id), list, [("a",)]),
    "count": (select(func.count()).select_from(RunRow), list, [(1,)]),
    "sum of another table": (select(func.sum(StreamRow.samples)), list, [(1,)]),
    "group": (select(RunRow.project, func.count()).group_by(RunRow.project), list, [("vision", 1)]),
    "join": (
        select(StreamRow.run_id, RunRow.name).join(RunRow, RunRow.id == StreamRow.run_id),
        list,
        [("a", "a")],
    ),
    "outer join": (
        select(StreamRow.run_id, RunRow.id).outerjoin(RunRow, RunRow.id == StreamRow.run_id),
        list,
        [("a", "a")],
    ),
    "subquery": (
        select(func.count()).select_from(select(StreamRow, RunRow.id).join(RunRow).subquery()),
        list,
        [(1,)],
    ),
    "in": (select(RankRow.run_id).where(RankRow.run_id.in_(select(RunRow.id))), list, [("a",)]),
    "exists": (select(exists().where(RunRow.id == "b")), list, [(False,)]),
    "scalar subquery": (select(select(func.count(RunRow.id)).scalar_subquery()), list, [(1,)]),
    "common table": (select(select(RunRow.id).cte().c.id), list, [("a",)]),
    "through a stream": (select(func.count(ChunkRow.seq)), list, [(1,)]),
    "alias of the same": (
        select(RunRow.id, ALIAS.id).where(ALIAS.step == RunRow.step),
        list,
        [("a", "a")],
    ),
    "joined alias of the same": (
        select(RunRow.id, ALIAS.id).join(ALIAS, ALIAS.step == RunRow.step),
        list,
        [("a", "a")],
    ),
    "outer joined alias": (
        select(RunRow.id, ALIAS.id).outerjoin(ALIAS, ALIAS.id != RunRow.id),
        list,
        [("a", None)],
    ),
    "joined alias of another": (
        select(RunRow.id, RANK.run_id).join(RANK, RANK.rank < 1),
        list,
        [("a", "a")],
    ),
    "alias by a subquery": (
        select(RunRow.id, RANK.run_id).outerjoin(RANK, RANK.attempt == NEWEST),
        list,
        [("a", "a")],
    ),
}


def test_a_query_returns_rows_of_its_projects_only(limited):
    with limited.read() as session:
        for name, (statement, read, expected) in QUESTIONS.items():
            assert read(session.execute(statement).all()) == expected, name


def test_a_cached_statement_is_scoped_to_each_session(limited, database):
    """SQLAlchemy caches statements: a cached one must not use another session's projects."""
    for name, (statement, read, _) in QUESTIONS.items():
        responses = []
        for projects in (("vision",), ("nlp",), ("vision", "nlp"), ("none",), ("vision",)):
            with database.limited_to(projects).read() as session:
                responses.append(str(read(session.execute(statement).all())))
        vision, nlp, both, none, again = responses
        assert vision == again and "'b'" not in vision and "'a'" not in nlp, name
        assert vision.replace("'a'", "'b'").replace("vision", "nlp") == nlp or name == "exists"
        assert "'a'" not in none and "'b'" not in none, name
        assert "'a'" not in vision or ("'a'" in both and "'b'" in both), name


def test_a_key_of_another_project_returns_nothing(limited):
    with limited.read() as session:
        assert session.get(RunRow, "a") is not None and session.get(RunRow, "b") is None
        assert (
            session.get(RankRow, ("a", 0, 0)) is not None
            and session.get(RankRow, ("b", 0, 0)) is None
        )
        with pytest.raises(UnknownRunError):
            lock_run(session, "b")


def test_rows_of_another_project_are_not_changed(limited, database):
    with limited.write() as session:
        assert session.execute(update(RunRow).values(name="mine")).rowcount == 1
        assert session.execute(delete(ChunkRow)).rowcount == 1
        assert session.execute(delete(RunRow).where(RunRow.id == "b")).rowcount == 0
    with database.read() as session:
        assert session.execute(select(RunRow.id, RunRow.name).order_by(RunRow.id)).all() == [
            ("a", "mine"),
            ("b", "b"),
        ]
        assert session.scalar(select(func.count(ChunkRow.seq))) == 1


def test_a_run_id_of_another_project_is_refused(limited, database):
    with pytest.raises(ConflictError, match="choose another"), limited.write() as session:
        start_run(session, RunStart(run_id="b", project="vision", name="mine"), 3.0)
    with database.read() as session:
        assert session.get_one(RunRow, "b").name == "b"
