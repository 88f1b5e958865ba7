"""Deletion of old samples and runs. Charts of runs and recent samples are preserved."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Float,
    LargeBinary,
    Table,
    event,
    func,
    insert,
    select,
    update,
)

from memagent.cli import main
from memagent.wire.messages import Batch, Chunk, Finish, RunStart
from memagent_server.schemas.runs import Statistics
from memagent_server.store import compaction, packing, retention
from memagent_server.store.compaction import compact_run
from memagent_server.store.history import read_chunks, read_summaries
from memagent_server.store.models import Base, BatchRow, ChunkRow, RunRow, StreamRow
from memagent_server.store.retention import (
    DAY_S,
    Limits,
    delete_ended_run,
    delete_rollups,
    delete_samples,
    find_prunable,
)
from memagent_server.store.runs import finish_run, get_run, start_run
from memagent_server.store.samples import add_batch
from memagent_server.store.series import series
from memagent_server.worker import Worker

ENDED_AT = 100.0
CHUNKS, ROWS = 6, 10


@pytest.fixture
def record(database):
    """record(run_id, finished=True): 60 samples in 6 chunks, with one spike."""

    def record(run_id="r", *, project="p", finished=True):
        with database.write() as session:
            start_run(session, RunStart(run_id=run_id, project=project), 1.0)
            for seq in range(CHUNKS):
                steps = list(range(seq * ROWS, (seq + 1) * ROWS))
                columns = {
                    "step": steps,
                    "time_s": [float(step) for step in steps],
                    "allocated_bytes": [999 if step == 33 else 100 for step in steps],
                }
                add_batch(
                    session,
                    run_id,
                    Batch(seq=seq, chunks=[Chunk(stream="host", columns=columns)]),
                    1.0,
                )
            if finished:
                finish_run(session, run_id, Finish(status="completed"), ENDED_AT)

    return record


@pytest.fixture
def old(database):
    def old(before=ENDED_AT + 1, **facts):
        with database.read() as session:
            return find_prunable(session, Limits(before), **facts)

    return old


@pytest.fixture(autouse=True)
def short_units(monkeypatch):
    """Chunks of ten samples are of the final cut."""
    monkeypatch.setattr(packing, "UNIT_ROWS", ROWS)
    monkeypatch.setattr(compaction, "UNIT_ROWS", ROWS)
    monkeypatch.setattr(compaction, "MIN_ROLLUP_ROWS", ROWS)


def test_the_chart_of_a_run_without_samples_is_drawn_from_summaries(database, record, monkeypatch):
    monkeypatch.setattr(retention, "MAX_DELETED_ROWS", 2)  # several transactions
    record()
    assert delete_samples(database, "r", ENDED_AT + 1) == CHUNKS
    with database.read() as session:
        result = series(session, "r", fields=["allocated_bytes"], points=1000)
        window = series(session, "r", fields=["allocated_bytes"], first=30, last=39, points=1000)
        stream = session.scalars(select(StreamRow)).one()
        assert list(read_chunks(session, stream)) == []
        summaries = list(read_summaries(session, stream, CHUNKS * ROWS, ["allocated_bytes"]))
        assert get_run(session, "r").keeps == "rollups"
    assert (result.samples, result.step) == (CHUNKS * ROWS, [9, 19, 29, 39, 49, 59])
    assert result.series["allocated_bytes"].max == [100, 100, 100, 999, 100, 100]
    assert window.series["allocated_bytes"] == Statistics([100], [999], [100])
    assert [stats["allocated_bytes"][1] for stats in summaries] == [100, 100, 100, 999, 100, 100]
    assert delete_rollups(database, "r", ENDED_AT + 1)
    with database.read() as session:
        assert series(session, "r", fields=["allocated_bytes"]).samples == 0
        assert get_run(session, "r").keeps == "record"


def test_a_running_run_keeps_its_newest_samples_and_the_whole_chart(database, record):
    record(finished=False)
    with database.write() as session:
        session.execute(update(ChunkRow).where(ChunkRow.seq < 4 * ROWS).values(received_at=50.0))
    assert delete_samples(database, "r", 0.5) == 0  # nothing came in before then
    with database.write() as session:
        session.execute(update(ChunkRow).where(ChunkRow.seq >= 4 * ROWS).values(received_at=90.0))
    assert delete_samples(database, "r", 60.0) == 4
    with database.read() as session:
        result = series(session, "r", fields=["allocated_bytes"])
        stream = session.scalars(select(StreamRow)).one()
        assert [chunk.columns["step"][0] for chunk in read_chunks(session, stream)] == [40, 50]
        assert get_run(session, "r").keeps == "samples"
    assert (result.samples, max(result.series["allocated_bytes"].max)) == (CHUNKS * ROWS, 999)


def test_a_run_whose_samples_were_deleted_can_resume(database, record):
    record()
    delete_samples(database, "r", ENDED_AT + 1)
    with database.write() as session:
        assert session.scalar(select(func.count()).select_from(BatchRow)) == 0
    record("r", finished=False)  # delivered again: nothing is doubled
    with database.write() as session:
        columns = {"step": [60, 61], "allocated_bytes": [1, 2]}
        add_batch(
            session, "r", Batch(seq=CHUNKS, chunks=[Chunk(stream="host", columns=columns)]), 300.0
        )
    compact_run(database, "r")
    with database.read() as session:
        result = series(session, "r", fields=["allocated_bytes"])
        assert get_run(session, "r").keeps == "samples"
    assert (result.samples, result.step[-1]) == (CHUNKS * ROWS + 2, 61)


def test_runs_with_old_samples_are_prunable(record, old, database):
    record("b")
    record("a", project="q")
    record("running", finished=False)
    assert [item.run_id for item in old()] == ["a", "b", "running"]
    assert [item.run_id for item in old(before=1.0)] == []
    assert {(item.content, item.chunks) for item in old()} == {("samples", CHUNKS)}
    assert all(item.packed_bytes > 0 for item in old())
    assert [item.run_id for item in old(project="q")] == ["a"]
    assert [item.run_id for item in old(before=ENDED_AT)] == ["running"]
    delete_samples(database, "a", ENDED_AT + 1)
    delete_samples(database, "running", 2.0)
    assert [item.run_id for item in old()] == ["b"]
    [whole] = old(project="q", whole=True)
    assert (whole.run_id, whole.content, whole.chunks) == ("a", "run", 0)
    assert whole.packed_bytes > 0  # its rollups
    with database.read() as session:
        [rollups] = find_prunable(session, Limits(0.0, ENDED_AT + 1))
    assert (rollups.run_id, rollups.content) == ("a", "rollups")


def test_a_run_resumed_before_the_deletion_keeps_its_samples(database, record, old):
    record()
    with database.write() as session:
        start_run(session, RunStart(run_id="r", attempt=1), 200.0)
        session.execute(update(ChunkRow).values(received_at=400.0))
    assert delete_samples(database, "r", 300.0) == 0
    assert not delete_ended_run(database, "r", 300.0)
    with database.read() as session:
        assert series(session, "r", attempt=0).bucketed is False
        assert get_run(session, "r") is not None


def test_deleting_samples_of_an_unknown_run_does_nothing(database):
    assert delete_samples(database, "none", 1.0) == 0
    assert not delete_ended_run(database, "none", 1.0)


def test_a_deleted_run_leaves_nothing_in_any_table(database):
    tables = _belonging_to_a_run()
    with database.write() as session:
        for table in tables:
            session.execute(insert(table).values(_row(table)))
    assert delete_ended_run(database, "r", ENDED_AT + 1)
    with database.read() as session:
        counts = {
            table.name: session.scalar(select(func.count()).select_from(table)) for table in tables
        }
    assert counts.pop("feedback") == 1  # it outlives the run
    assert counts.pop("run_deletions") == 1  # tables of runs in memory learn it from there
    assert len(counts) > 10
    assert set(counts.values()) == {0}, counts


@pytest.mark.parametrize(("days", "is_gone"), [(1, True), (3, False)])
def test_the_worker_deletes_samples_older_than_the_setting(
    database, record, old, make_settings, days, is_gone
):
    record()
    Worker(
        database, make_settings(database.url, retention_days=days), lambda: ENDED_AT + 2 * DAY_S
    ).turn()
    assert (old() == []) is is_gone
    assert len(old(whole=True)) == 1


@pytest.fixture
def prune(database, monkeypatch, capsys):
    """Return prune(*arguments), which returns the exit status and the output."""
    monkeypatch.setenv("MEMAGENT_DATABASE_URL", database.url)
    monkeypatch.setenv("MEMAGENT_SECRET_KEY", "for tests")

    def prune(*arguments):
        status = main(["prune", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return prune


def test_a_dry_run_prints_and_changes_nothing(record, prune, old):
    record()
    status, out, err = prune("--dry-run", "--older-than", "1d")
    assert (status, err) == (0, "")
    assert out.startswith("r  p  r  samples  6 chunks")
    assert "1 would be deleted" in out
    assert len(old()) == 1


def test_prune_deletes_samples_by_default_and_runs_on_request(record, prune, old):
    record()
    status, out, _ = prune("--json")
    assert status == 0
    assert {**json.loads(out), "runs": None, "packed_bytes": None} == {
        "dry_run": False,
        "whole": False,
        "chunks": CHUNKS,
        "packed_bytes": None,
        "runs": None,
    }
    assert len(old(whole=True)) == 1
    assert prune("--runs", "--older-than", "1d", "--project", "other")[0] == 0
    assert len(old(whole=True)) == 1
    assert prune("--runs", "--older-than", "1d")[0] == 0
    assert old(whole=True) == []


@pytest.mark.parametrize("arguments", [("--runs",), ("--older-than", "soon")])
def test_an_ambiguous_prune_is_refused(prune, arguments):
    status, _, err = prune(*arguments)
    assert status == 2
    assert "--older-than" in err


def _belonging_to_a_run() -> list[Table]:
    """`runs`, and every table from which foreign keys lead there or that names a run; parents first."""
    results = [Base.metadata.tables[RunRow.__tablename__]]
    for table in Base.metadata.sorted_tables:
        leads_there = any(key.column.table in results for key in table.foreign_keys)
        if table not in results and (leads_there or "run_id" in table.columns):
            results.append(table)
    return results


def _row(table: Table) -> dict[str, object]:
    """A row of the run `r`, whose every column has a value."""
    row = {column.name: _value(column) for column in table.columns}
    return {**row, "finished_at": ENDED_AT} if "finished_at" in row else row


def _value(column) -> object:
    if column.name == "run_id" or (column.table.name == "runs" and column.name == "id"):
        return "r"
    for kind, value in (
        (JSON, {}),
        (Boolean, True),
        (BigInteger, 1),
        (Float, 1.0),
        (LargeBinary, b"x"),
    ):
        if isinstance(column.type, kind):
            return value
    return 1 if column.type.python_type is int else "x"


def test_expired_runs_are_found_by_an_index(sqlite_database):
    queries = []

    def note(connection, cursor, statement, parameters, *_):
        if statement.startswith("SELECT"):
            queries.append((statement, parameters))

    event.listen(sqlite_database.engine, "before_cursor_execute", note)
    with sqlite_database.read() as session:
        find_prunable(session, Limits(1.0, 1.0), sizes=False)
    event.remove(sqlite_database.engine, "before_cursor_execute", note)
    with sqlite_database.engine.connect() as connection:
        for statement, parameters in queries:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
            assert "USING INDEX ix_runs_" in plan[0].detail, plan
    assert len(queries) == 3
