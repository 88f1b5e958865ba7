"""Schema versions: models match migrations, concurrent upgrades, and newer databases."""

from __future__ import annotations

import re
import sqlite3
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, select, text

from memagent.wire.columns import pack, unpack
from memagent.wire.messages import Batch, Chunk, Device, RunStart, SnapshotMessage
from memagent_server.store import engine, migrate
from memagent_server.store.chunks import column_stats, pack_stats
from memagent_server.store.compaction import compact_run
from memagent_server.store.engine import Database
from memagent_server.store.errors import SchemaError
from memagent_server.store.models import (
    AlertRow,
    Base,
    ChunkRow,
    EvaluationMarkRow,
    IncidentRow,
    NotificationRow,
    StreamRow,
)
from memagent_server.store.predictions import list_predictions
from memagent_server.store.run_list import RunQuery, find_runs, list_runs
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch, read_samples
from memagent_server.store.series import series
from memagent_server.store.snapshots import add_snapshot, list_snapshots, viewer_of
from memagent_server.store.tokens import create_token, list_tokens


@pytest.fixture
def empty(empty_database_url):
    database = Database(empty_database_url)
    yield database
    database.close()


def test_models_and_migrations_are_the_same(database):
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_name": _is_no_partition})
        assert compare_metadata(context, Base.metadata) == []


def _is_no_partition(name, kind, _parents):
    return kind != "table" or re.fullmatch(r"(chunks|rollups)_\d\d", name) is None


def test_an_empty_database_has_no_version(empty):
    assert migrate.current(empty) is None
    assert not migrate.is_current(empty)


def test_it_goes_up_and_down_and_up(empty):
    assert migrate.upgrade(empty) == migrate.head() == migrate.current(empty)
    assert set(Base.metadata.tables) < set(inspect(empty.engine).get_table_names())
    migrate.downgrade(empty, "base")
    assert migrate.current(empty) is None
    assert set(inspect(empty.engine).get_table_names()) == {"alembic_version"}
    assert migrate.upgrade(empty) == migrate.head()


def test_the_bounds_of_a_prediction_survive_both_ways(empty):
    """0003 keeps them as the interval of a level."""
    migrate.upgrade(empty)
    migrate.downgrade(empty, "0002")
    with empty.engine.begin() as connection:
        connection.execute(text(
            "INSERT INTO runs (id, project, name, status, attempt, world_size, step, created_at, last_seen_at, config, tags, environment) "
            "VALUES ('r', 'p', 'n', 'running', 0, 1, 0, 1.0, 1.0, '{}', '[]', '{}')"
        ))  # fmt: skip
        for key, bounds in ((1, "90, 110"), (2, "NULL, NULL")):
            connection.execute(text(
                "INSERT INTO predictions (id, run_id, rank, device, method, created_at, peak_allocated_bytes, low_bytes, high_bytes, "
                f"components, assumptions, advice) VALUES ({key}, 'r', 0, 'D', 'trace', 1.0, 100, {bounds}, '{{}}', '{{}}', '[]')"
            ))  # fmt: skip
    migrate.upgrade(empty)
    with empty.read() as session:
        bounded, unbounded = list_predictions(session, "r")[::-1]
        assert bounded.intervals == {"allocated": [90, 110]}
        assert (unbounded.intervals, unbounded.phases, unbounded.terms) == ({}, {}, {})
    migrate.downgrade(empty, "0002")
    with empty.engine.connect() as connection:
        rows = connection.execute(
            text("SELECT low_bytes, high_bytes FROM predictions ORDER BY id")
        ).all()
    assert [tuple(row) for row in rows] == [(90, 110), (None, None)]


def test_runs_of_an_older_schema_are_listed_by_tag_and_by_fullness(empty):
    """0007 makes rows of their tags, and finds the highest share of a limit among their streams."""
    migrate.upgrade(empty)
    migrate.downgrade(empty, "0005")
    with empty.engine.begin() as connection:
        connection.execute(text(
            "INSERT INTO runs (id, project, name, status, attempt, world_size, step, created_at, last_seen_at, config, tags, environment) "
            "VALUES ('r', 'p', 'n', 'running', 0, 1, 0, 7.0, 7.0, '{}', '[\"a\", \"b\", \"a\"]', '{}'), "
            "('s', 'p', 'n', 'running', 0, 1, 0, 8.0, 8.0, '{}', '[]', '{}')"
        ))  # fmt: skip
        for key, peak in ((1, "300"), (2, "500"), (3, "NULL")):
            connection.execute(text(
                "INSERT INTO streams (id, run_id, rank, attempt, is_current, device, kind, name, limit_bytes, samples, chunks, peak_bytes, "
                f"latest) VALUES ({key}, 'r', {key}, 0, {'1' if empty.engine.dialect.name == 'sqlite' else 'true'}, 'D', 'cuda', 'D', "
                f"1000, 0, 0, {peak}, '{{}}')"
            ))  # fmt: skip
    migrate.upgrade(empty)
    with empty.read() as session:
        assert [run.id for run in list_runs(session, RunQuery(tag="b")).runs] == ["r"]
        assert [
            (run.id, run.peak_ratio) for run in find_runs(session, RunQuery(sort="-peak_ratio"))[0]
        ] == [("r", 0.5), ("s", 0.0)]
    migrate.downgrade(empty, "0005")
    with empty.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM streams")).scalar() == 3


def test_alerts_of_an_older_schema_become_separate_incidents(empty):
    """0004 gives each an incident under its own id, with its notifications; the next incident takes a free id."""
    migrate.upgrade(empty, "0003")
    with empty.engine.begin() as connection:
        connection.execute(text(
            "INSERT INTO runs (id, project, name, status, attempt, world_size, step, created_at, last_seen_at, config, tags, environment) "
            "VALUES ('r', 'p', 'n', 'running', 0, 1, 0, 1.0, 1.0, '{}', '[]', '{}')"
        ))  # fmt: skip
        before = (
            (3, "firing", "NULL", '{"cause": "leak"}'),
            (5, "pending", "NULL", "{}"),
            (7, "oom", "6.0", "{}"),
        )
        for key, state, closed, data in before:
            connection.execute(text(
                "INSERT INTO alerts (id, run_id, rule, severity, state, version, opened_at, updated_at, closed_at, first_step, step, "
                "summary, data) "
                f"VALUES ({key}, 'r', 'oom_forecast', 'critical', '{state}', 0, 4.0, 5.0, {closed}, 8, 9, '', '{data}')"
                .replace(":", r"\:")
            ))  # fmt: skip
            connection.execute(text(
                "INSERT INTO transitions (id, alert_id, at, step, from_state, to_state, severity, reason, data) "
                f"VALUES ({key}, {key}, 4.0, 8, 'ok', 'firing', 'critical', '', '{{}}')"
            ))  # fmt: skip
            connection.execute(text(
                "INSERT INTO notifications (id, alert_id, transition_id, channel, dedup_key, state, attempts, created_at, "
                f"next_attempt_at, receipt) VALUES ({key}, {key}, {key}, 'slack', 'k{key}', 'sent', 1, 4.0, 4.0, '{{}}')"
            ))  # fmt: skip
    for _ in range(2):  # up, and again after a downgrade
        migrate.upgrade(empty)
        with empty.write() as session:
            notifications = [
                (incident.id, incident.cause, incident.state, incident.opened_at, incident.fired_at, incident.closed_at)
                for incident in session.query(IncidentRow).order_by(IncidentRow.id)
            ]  # fmt: skip
            assert notifications == [
                (3, "leak", "firing", 4.0, 4.0, None),
                (5, None, "pending", 4.0, None, None),
                (7, None, "oom", 4.0, 4.0, 6.0),
            ]
            for item in (AlertRow, NotificationRow):
                assert [
                    (row.id, row.incident_id) for row in session.query(item).order_by(item.id)
                ] == [(key, key) for key in (3, 5, 7)]
            fresh = IncidentRow(
                run_id="r",
                rule="leak",
                state="pending",
                severity="warning",
                opened_at=9.0,
                updated_at=9.0,
            )
            session.add(fresh)
            session.flush()
            assert fresh.id == 8
        migrate.downgrade(empty, "0003")
        with empty.engine.connect() as connection:
            for table in ("alerts", "transitions", "notifications"):
                assert list(connection.scalars(text(f"SELECT id FROM {table} ORDER BY id"))) == [
                    3,
                    5,
                    7,
                ]


def test_samples_survive_a_downgrade_and_an_upgrade(empty):
    migrate.upgrade(empty)
    with empty.write() as session:
        start_run(
            session, RunStart(run_id="r", devices=[Device(id="D", kind="cuda", name="D")]), 1.0
        )
        add_batch(
            session, "r", Batch(seq=0, chunks=[Chunk(stream="D", columns={"step": [1, 2]})]), 2.0
        )
    migrate.downgrade(empty, "0002")
    migrate.upgrade(empty)
    with empty.read() as session:
        [stream] = session.query(StreamRow)
        assert [columns["step"] for _, columns in read_samples(session, stream.id)] == [[1, 2]]
        assert stream.peaks == {}


def test_snapshots_survive_a_downgrade_and_an_upgrade(empty):
    """0006 drops the viewer's page with its column; the rest of a snapshot stays."""
    migrate.upgrade(empty)
    with empty.write() as session:
        start_run(session, RunStart(run_id="r"), 1.0)
        add_snapshot(
            session,
            "r",
            SnapshotMessage(method="history", step=7, viewer=zlib.compress(b"<html>")),
            2.0,
        )
    migrate.downgrade(empty, "0005")
    migrate.upgrade(empty)
    with empty.read() as session:
        [snapshot] = list_snapshots(session, "r")
        assert (snapshot.step, snapshot.has_viewer, viewer_of(session, "r", snapshot.id)) == (
            7,
            False,
            None,
        )


def test_a_project_token_is_invalid_after_a_downgrade(empty):
    """0008: going back must not turn a token for one project, or one that ends, into one for everything and for good."""
    migrate.upgrade(empty)
    with empty.write() as session:
        for name, limits in (
            ("whole", {}),
            ("limited", {"projects": ["vision"]}),
            ("ends", {"expires_at": 9.0}),
        ):
            create_token(session, name=name, scope="read", token_hash=name, now=1.0, **limits)
    migrate.downgrade(empty, "0005")
    with empty.engine.connect() as connection:
        rows = connection.execute(text("SELECT name, revoked_at FROM tokens ORDER BY id")).all()
    assert [tuple(row) for row in rows] == [("whole", None), ("limited", 1.0), ("ends", 1.0)]
    migrate.upgrade(empty)
    with empty.read() as session:
        assert [(token.projects, token.expires_at) for token in list_tokens(session)] == [
            ([], None)
        ] * 3


def test_tokens_of_an_older_schema_are_local_by_their_names(empty):
    """0012 marks them; a user's token of another name isn't one."""
    migrate.upgrade(empty)
    migrate.downgrade(empty, "0011")
    names = {"local@host:8420 read": True, "local@host:8420 admin": False, "local@ana": False}
    with empty.engine.begin() as connection:
        for key, name in enumerate(names):
            connection.execute(text(
                "INSERT INTO tokens (id, name, scope, projects, hash, created_at) "
                f"VALUES ({key + 1}, '{name}', 'read', '[]', '{key}', 1.0)"
            ))  # fmt: skip
    migrate.upgrade(empty)
    with empty.read() as session:
        assert {token.name: token.is_local for token in list_tokens(session)} == names
    migrate.downgrade(empty, "0011")
    with empty.engine.connect() as connection:
        assert set(connection.execute(text("SELECT name FROM tokens")).scalars()) == {*names}


def test_it_can_be_repeated(empty):
    assert migrate.upgrade(empty) == migrate.upgrade(empty)
    assert migrate.is_current(empty)


def test_threads_may_upgrade_at_once(empty_database_url):
    def upgrade(_):
        database = Database(empty_database_url)
        try:
            return migrate.upgrade(database)
        finally:
            database.close()

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(upgrade, range(8))) == {migrate.head()}


def test_a_new_sqlite_database_waits_for_another_that_writes_first(tmp_path, monkeypatch):
    path = tmp_path / "new.db"
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")  # refuses a switch to WAL at once, whatever the busy timeout
    monkeypatch.setattr(engine.time, "sleep", lambda _: writer.in_transaction and writer.commit())
    with closing(writer), closing(Database(f"sqlite:///{path}")) as database:
        assert migrate.upgrade(database) == migrate.head()
        assert not writer.in_transaction


def test_processes_may_upgrade_at_once(memagent_fork, empty_database_url):
    code = (
        "import sys; from memagent_server.store import migrate; from memagent_server.store.engine import Database; "
        "print(migrate.upgrade(Database(sys.argv[1])))"
    )
    processes = [memagent_fork.start("-c", code, empty_database_url) for _ in range(4)]
    outputs = [process.communicate()[0] for process in processes]
    assert [output.strip() for output in outputs] == [migrate.head()] * 4


def test_a_newer_database_is_refused_and_not_changed(database):
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaError, match=r"9999.*upgrade memagent"):
        migrate.upgrade(database)
    assert migrate.current(database) == "9999"
    assert not migrate.is_current(database)


def test_an_interrupted_upgrade_is_rolled_back(empty, monkeypatch):
    calls = []

    def interrupt_before_the_commit(connection):
        calls.append(connection)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(migrate, "_revision", interrupt_before_the_commit)
    with pytest.raises(KeyboardInterrupt):
        migrate.upgrade(empty)
    assert inspect(empty.engine).get_table_names() == []


def _old_chunks(database):
    """Create rows of 0008: two chunks, one without samples, and a state that has read two."""
    with database.engine.begin() as connection:
        connection.execute(text(
            "INSERT INTO runs (id, project, name, status, attempt, world_size, step, created_at, last_seen_at, config, tags, environment) "
            "VALUES ('r', 'p', 'n', 'completed', 0, 1, 0, 1.0, 1.0, '{}', '[]', '{}')"
        ))  # fmt: skip
        connection.execute(text(
            "INSERT INTO streams (id, run_id, rank, attempt, is_current, device, kind, name, samples, chunks, latest) "
            "VALUES (7, 'r', 0, 0, :yes, 'D', 'cuda', 'D', 60, 3, '{}')"
        ), {"yes": True})  # fmt: skip
        for seq, rows in enumerate((10, 20, 30)):
            steps = list(range(100 * seq, 100 * seq + rows))
            columns = {"step": steps, "allocated_bytes": [5 * step for step in steps]}
            connection.execute(text(
                "INSERT INTO chunks (stream_id, seq, first_step, last_step, rows, received_at, stats, packed) "
                "VALUES (7, :seq, :first, :last, :rows, 3.0, :stats, :packed)"
            ), {
                "seq": seq, "first": steps[0], "last": steps[-1], "rows": rows, "stats": pack_stats(column_stats(columns)),
                "packed": b"" if seq == 0 else pack(columns),
            })  # fmt: skip
        connection.execute(text("INSERT INTO watches (stream_id, seq, states) VALUES (7, 1, '{}')"))


def test_chunks_are_numbered_by_their_samples_and_back(empty):
    """0009: compacted and rolled-up samples are chunks again that the older version can read."""
    migrate.upgrade(empty, "0008")
    _old_chunks(empty)
    migrate.upgrade(empty)
    with empty.read() as session:
        chunks = session.execute(
            select(ChunkRow.run_id, ChunkRow.seq, ChunkRow.rows).order_by(ChunkRow.seq)
        )
        assert chunks.all() == [("r", 9, 10), ("r", 29, 20), ("r", 59, 30)]
        assert session.scalar(select(EvaluationMarkRow.seq)) == 29
        [(first, _), (second, _)] = [(seq, columns) for seq, columns in read_samples(session, 7)]
        assert (first, second) == (29, 59)
    compact_run(empty, "r")
    with empty.read() as session:
        assert session.scalars(select(ChunkRow.rows)).all() == [50]
        chart = series(session, "r", fields=["allocated_bytes"], attempt=0, points=2000)
        assert (chart.samples, chart.step[0]) == (60, 9)  # of the first ten there is the summary
    migrate.downgrade(empty, "0008")
    with empty.engine.connect() as connection:
        rows = connection.execute(
            text("SELECT seq, first_step, rows, packed FROM chunks ORDER BY seq")
        ).all()
        assert [(row.seq, row.first_step, row.rows) for row in rows] == [(0, 0, 10), (1, 100, 50)]
        assert rows[0].packed == b""
        assert unpack(bytes(rows[1].packed))["step"] == [*range(100, 120), *range(200, 230)]
        assert connection.execute(text("SELECT seq FROM watches")).scalar() == 0
        assert connection.execute(text("SELECT chunks FROM streams")).scalar() == 2
    migrate.upgrade(empty)
    with empty.read() as session:
        assert [seq for seq, _ in read_samples(session, 7)] == [59]


@pytest.mark.postgres
def test_samples_are_partitioned_by_run_on_postgresql(postgres_url):
    database = Database(postgres_url)
    with database.engine.connect() as connection:
        for table in ("chunks", "rollups"):
            count = text(
                "SELECT count(*) FROM pg_inherits WHERE inhparent = CAST(:table AS regclass)"
            )
            assert connection.execute(count, {"table": table}).scalar() == 16
        connection.execute(
            text("SET enable_seqscan = off")
        )  # an empty partition is read whole where nothing is known of it
        query = "EXPLAIN SELECT packed FROM chunks WHERE stream_id = 1 AND run_id = 'r' AND seq > 5"
        plan = "\n".join(row[0] for row in connection.execute(text(query)))
    database.close()
    scans = plan.count("Index Scan using") + plan.count("Bitmap Heap Scan")
    assert scans == 1, plan  # one partition


@pytest.mark.postgres
def test_a_database_whose_tables_citus_distributes_is_refused(postgres_url):
    """Its catalog's table is there with the extension, and lists what is distributed."""
    database = Database(postgres_url)
    with database.engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE pg_dist_partition (logicalrelid regclass, colocationid int)")
        )
    assert migrate.upgrade(database) == migrate.head()
    with database.engine.begin() as connection:
        connection.execute(
            text("INSERT INTO pg_dist_partition VALUES ('rollups', 1), ('chunks', 1)")
        )
    with pytest.raises(
        SchemaError, match=r"Citus distributes chunks, rollups apart .*undistribute_table"
    ):
        migrate.upgrade(database)
    database.close()
