"""Citus: the layout by run keeps a batch whole, and each of its statements goes to one node.

The tests need Citus beside PostgreSQL: `make test-citus`.
"""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import event, func, select, text
from sqlalchemy.exc import DBAPIError

from memagent.forecast import Forecast
from memagent.wire.columns import pack
from memagent.wire.messages import (
    Batch,
    Chunk,
    Device,
    Event,
    Finish,
    PredictionMessage,
    RunStart,
    SnapshotMessage,
)
from memagent_server.store import migrate, models
from memagent_server.store.alerts import open_alert
from memagent_server.store.compaction import compact_run
from memagent_server.store.engine import Database
from memagent_server.store.errors import UNAVAILABLE, SchemaError, problem_of
from memagent_server.store.evaluation import StreamMark, put_marks
from memagent_server.store.forecasts import add_forecasts, latest_risk
from memagent_server.store.predictions import add_prediction
from memagent_server.store.runs import delete_run, finish_run, lock_runs, start_run
from memagent_server.store.samples import read_samples, store_batch
from memagent_server.store.series import series
from memagent_server.store.snapshots import add_snapshot, has_snapshot, viewer_of
from tests.citus import citus_cluster, is_installed

pytestmark = [pytest.mark.citus, pytest.mark.xdist_group("citus")]

DEVICE = Device(id="host", kind="host", name="node", limit_bytes=1000)
PREDICTION = PredictionMessage(method="trace", device="host", peak_allocated_bytes=900)
SAMPLES = 600
"""More than compaction packs into a chunk."""


@pytest.fixture(scope="module")
def programs(postgres_programs):
    if not is_installed(postgres_programs):
        pytest.fail(f"Citus is not installed for {postgres_programs}: see docs/scaling.md")
    return postgres_programs


@pytest.fixture(scope="module")
def cluster(programs):
    with citus_cluster(programs) as cluster:
        yield cluster


@pytest.fixture
def name(cluster):
    """The name of an empty database on all nodes of the cluster."""
    with cluster.database() as name:
        yield name


@pytest.fixture
def one_node(cluster, name):
    """The database without Citus' layout."""
    with closing(Database(cluster.coordinator.url(name))) as database:
        migrate.upgrade(database)
        yield database


@pytest.fixture
def citus(one_node):
    """The database with the layout by run."""
    migrate.distribute(one_node)
    return one_node


def batch_of(seq, rows=10):
    steps = list(range(seq * rows, (seq + 1) * rows))
    packed = pack({"step": steps, "allocated_bytes": [step * 1000 for step in steps]}, codec="zlib")
    chunk = Chunk(stream="host", packed=packed)
    return Batch(seq=seq, chunks=[chunk], events=[Event(kind="mark", step=seq)])


def start(database, run_id="r"):
    with database.write() as session:
        start_run(session, RunStart(run_id=run_id, tags=["a", "b"], devices=[DEVICE]), 1.0)


def send(database, seq, run_id="r", rows=10):
    return database.write_grouped(
        lambda connection: store_batch(connection, run_id, batch_of(seq, rows), 2.0)
    )


def steps_of(database, run_id="r"):
    with database.read() as session:
        ids = session.scalars(select(models.StreamRow.id).filter_by(run_id=run_id)).all()
        return [
            step
            for stream_id in ids
            for _, columns in read_samples(session, stream_id)
            for step in columns["step"]
        ]


def test_a_database_with_runs_is_distributed_and_keeps_them(cluster, name, one_node):
    start(one_node)
    send(one_node, 0)
    migrate.distribute(one_node)
    migrate.distribute(one_node)  # again changes nothing
    send(one_node, 1)
    assert steps_of(one_node) == list(range(20))
    groups = cluster.execute(name, "SELECT DISTINCT colocation_id FROM citus_tables")
    assert len(groups) == 1
    migrate.upgrade(one_node)


def test_another_layout_is_refused(cluster, name, one_node):
    distribute_chunks_only(cluster, name)
    for change in (migrate.upgrade, migrate.distribute):
        with pytest.raises(SchemaError, match=r"Citus distributes chunks.*undistribute_table"):
            change(one_node)


def test_a_database_without_citus_is_not_distributed(database):
    with pytest.raises(SchemaError, match="CREATE EXTENSION citus"):
        migrate.distribute(database)


def test_each_statement_about_a_run_goes_to_one_node(citus):
    start(citus)
    send(citus, 0)
    statements = []
    with record_statements(citus, statements):
        start(citus, "s")
        for seq in range(3):
            send(citus, seq, "s", rows=SAMPLES)
        use_run(citus, "s")
    tasks = {statement: count_tasks(citus, statement, values) for statement, values in statements}
    assert {statement for statement, count in tasks.items() if count not in (None, 1)} == set()
    written = {table for table in models.Base.metadata.tables for statement, count in tasks.items()
               if count and re.match(rf"(INSERT INTO|UPDATE) {table}\b", statement)}  # fmt: skip
    assert written >= {"runs", "ranks", "streams", "batches", "chunks", "events", "forecasts"}


def test_a_batch_is_whole_after_a_kill_between_two_commits(cluster, name, citus):
    start(citus)
    send(citus, 0)
    kill_between_commits(cluster, lambda: send(citus, 1))
    assert send(citus, 1).next_seq == 2
    send(citus, 2)
    assert steps_of(citus) == list(range(30))


def test_a_layout_of_chunks_only_loses_a_batch_then(cluster, name, one_node):
    """The counterexample: the worker has the chunk, the coordinator has no batch."""
    distribute_chunks_only(cluster, name)
    start(one_node)
    send(one_node, 0)
    kill_between_commits(cluster, lambda: send(one_node, 1))
    with pytest.raises(DBAPIError, match="duplicate key"):
        send(one_node, 1)


def test_a_dead_node_refuses_its_runs_and_no_others(cluster, name, citus):
    node, *_ = cluster.workers
    runs = [f"r{number}" for number in range(20)]
    for run_id in runs:
        start(citus, run_id)
    there = [run_id for run_id in runs if cluster.worker_of(name, run_id) is node]
    assert 0 < len(there) < len(runs)
    node.kill()
    for run_id in runs:
        if run_id not in there:
            send(citus, 0, run_id)
    for run_id in there[:3]:
        with pytest.raises(DBAPIError) as refused:
            send(citus, 0, run_id)
        assert problem_of(refused.value) == UNAVAILABLE
    node.start()
    for run_id in there:
        send(citus, 0, run_id)
    assert all(steps_of(citus, run_id) == list(range(10)) for run_id in runs)


def test_nodes_are_added_while_batches_arrive(cluster, name, citus):
    runs = [f"r{number}" for number in range(8)]
    for run_id in runs:
        start(citus, run_id)
    is_done = threading.Event()

    def deliver(run_id):
        seq = 0
        while seq < 3 or not is_done.is_set():
            try:
                send(citus, seq, run_id)
            except DBAPIError as error:
                assert problem_of(error) is not None  # refused, and sent again
            else:
                seq += 1
        return seq

    with ThreadPoolExecutor(len(runs)) as pool:
        sent = [pool.submit(deliver, run_id) for run_id in runs]
        try:
            node = cluster.add_worker(name)
            cluster.execute(
                name, "SELECT rebalance_table_shards(shard_transfer_mode => 'block_writes')"
            )
        finally:
            is_done.set()
    assert any(cluster.worker_of(name, run_id) is node for run_id in runs)
    for run_id, seqs in zip(runs, sent, strict=True):
        assert steps_of(citus, run_id) == list(range(10 * seqs.result()))


def test_a_deletion_takes_the_alerts_with_it_on_all_nodes_or_none(citus):
    start(citus)
    send(citus, 0)
    with citus.write() as session:
        stream = session.scalars(select(models.StreamRow)).one()
        put_marks(session, [StreamMark(stream.id, 9, {})])
        add_alert(session, stream)
    notices = []
    with citus.write() as session:
        driver = session.connection().connection.driver_connection
        driver.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        session.execute(text("SET LOCAL citus.log_remote_commands = on"))
        assert delete_run(session, "r")
    assert any("PREPARE TRANSACTION" in notice for notice in notices)
    with citus.read() as session:
        for table in models.Base.metadata.tables.values():
            if {"run_id", "stream_id"} & set(table.c.keys()):
                assert session.scalar(select(func.count()).select_from(table)) == 0, table


def add_alert(session, stream):
    open_alert(
        session,
        run_id=stream.run_id,
        stream_id=stream.id,
        rule="oom_forecast",
        severity="warning",
        state="firing",
        step=9,
        summary="",
        data={},
        now=2.0,
    )


def use_run(database, run_id):
    """Send and read the rest of what agents send, and what a run's page and compaction need."""
    with database.write() as session:
        stream = session.scalars(select(models.StreamRow).filter_by(run_id=run_id)).one()
        add_forecasts(session, [(run_id, stream.id, Forecast(step=1, level="ok"))], 3.0)
        add_prediction(session, run_id, PREDICTION, 3.0)
        message = SnapshotMessage(method="census", step=1, viewer=b"page")
        snapshot = add_snapshot(session, run_id, message, 3.0)
        lock_runs(session, [run_id, "r"])
    with database.connect() as connection:
        latest_risk(connection, run_id, 0)
        has_snapshot(connection, run_id, 0, 0)
    with database.write() as session:
        finish_run(session, run_id, Finish(status="completed"), 4.0)
    compact_run(database, run_id)
    with database.read() as session:
        series(session, run_id)
        viewer_of(session, run_id, snapshot.id)


@contextmanager
def record_statements(database, statements):
    """Append (statement, parameters) of all statements."""

    def record(_connection, _cursor, statement, parameters, _context, is_many):
        statements.append((statement, parameters[0] if is_many else parameters))

    event.listen(database.engine, "before_cursor_execute", record)
    yield
    event.remove(database.engine, "before_cursor_execute", record)


def count_tasks(database, statement, parameters):
    """Return the tasks of a statement, None if it stays on the coordinator."""
    with database.engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)
        lines = "\n".join(line for (line,) in plan)
    found = re.search(r"Task Count: (\d+)", lines)
    return None if found is None else int(found[1])


def distribute_chunks_only(cluster, name):
    with cluster.coordinator.connected(name) as connection:
        connection.execute("SET citus.shard_count = 2")
        connection.execute("SELECT create_distributed_table('chunks', 'run_id')")


def kill_between_commits(cluster, write):
    """Kill the coordinator while a worker has committed a write and the coordinator has not."""
    with ThreadPoolExecutor(1) as pool, cluster.unanswered_commits():
        written = pool.submit(write)
        cluster.wait_for_commit()
        cluster.coordinator.kill()
        with pytest.raises(DBAPIError):
            written.result()
    cluster.coordinator.start()
