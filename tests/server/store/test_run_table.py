"""The table of runs in memory shows what is stored: after any change, for each process and token."""

from __future__ import annotations

import random
from threading import Thread

import pytest
from msgspec import json
from sqlalchemy import update

from memagent.filters.columns import column_of, order_of
from memagent.filters.expression import config_values, matches
from memagent.filters.parser import parse
from memagent.wire.messages import Batch, Chunk, Finish, RunStart
from memagent_server.store import run_table
from memagent_server.store.engine import Database
from memagent_server.store.errors import BusyError
from memagent_server.store.models import RunRow, StreamRow
from memagent_server.store.run_edits import archive, change_tags, edit_run
from memagent_server.store.run_list import RunQuery, list_runs
from memagent_server.store.run_table import RunTable, table_of
from memagent_server.store.runs import delete_run, finish_run, lock_run, start_run
from memagent_server.store.samples import add_batch

COLUMNS = ("config.lr", "config.name", "scalar.loss", "name", "tags", "step", "status", "error")
WHERES = (
    None,
    "config.lr < 2",
    'config.name = "a" or scalar.loss < 0.5',
    "not config.lr = 1",
    '"x" in tags',
    'status = "running" and step > 2',
)


def start(database, run_id, now=1.0, **facts):
    with database.write() as session:
        start_run(session, RunStart(run_id=run_id, **facts), now)


def log(database, run_id, seq, loss, rank=0):
    columns = {"step": [seq], "time_s": [1.0], "loss": [loss]}
    batch = Batch(rank=rank, seq=seq, chunks=[Chunk(stream="scalars", columns=columns)])
    with database.write() as session:
        add_batch(session, run_id, batch, 100.0 + seq)


def ask(database, *, limit=200, **query):
    """Return the ids of a list, all pages of it."""
    if isinstance(query.get("where"), str):
        query["where"] = parse(query["where"])
    found, cursor = [], None
    while True:
        with database.read() as session:
            page = list_runs(session, RunQuery(limit=limit, cursor=cursor, **query))
        found += [run.id for run in page.runs]
        cursor = page.next_cursor
        if cursor is None:
            return found


def expected(database, where, sort, *, is_archived=False):
    """Return what the list says, by reading each row."""
    column, is_falling = order_of(sort)
    with database.read() as session:
        rows = [run for run in session.query(RunRow) if run.is_archived == is_archived]
        streams = session.query(StreamRow).filter(StreamRow.is_current).order_by(StreamRow.rank)
        latest = {}
        for stream in streams:
            latest.setdefault(stream.run_id, []).append(stream.latest)

    def lookup(run, column):
        if column.source == "config":
            return config_values(run.config, column.path)
        if column.source == "scalar":
            parts = [config_values(values, column.path) for values in latest.get(run.id, ())]
            return [value for values in parts for value in values]
        value = getattr(run, column.path[0])
        return value if isinstance(value, list) else [value]

    def key(run):
        known = [value for value in lookup(run, column) if value is not None]
        if column.path == ("tags",):
            return tuple(known)
        value = known[0]
        if isinstance(value, str):
            return 2, value
        if isinstance(value, list | dict):
            return 3, json.encode(value).decode()
        return int(not isinstance(value, bool)), value

    if where is not None:
        rows = [
            run for run in rows if matches(parse(where), lambda name, run=run: lookup(run, name))
        ]
    missing = [run for run in rows if not [v for v in lookup(run, column) if v is not None]]
    known = [run for run in rows if run not in missing]
    known.sort(key=lambda run: (key(run), run.id), reverse=is_falling)
    missing.sort(key=lambda run: run.id, reverse=is_falling)
    return [run.id for run in (*known, *missing)]


def test_lists_are_right_after_any_change(database):
    """Also in another process, which learns of all changes from the database."""
    source, other = random.Random(1), Database(database.url)
    seqs, starts = {}, 0
    for turn in range(60):
        run_id = f"run-{source.randrange(12)}"
        action = source.choice(["start", "log", "log", "edit", "archive", "finish", "delete"])
        if run_id not in seqs or action == "start":
            value = source.choice([1, 1.5, 2, "a", "b", True, None, [1, 2], {"b": 1}])
            if run_id not in seqs:
                config = {"lr": value, "name": source.choice(["a", "ä", 'q"', None])}
                start(database, run_id, float(turn), config=config, tags=source.choice([[], ["x"]]))
                seqs[run_id] = 0
        elif action == "log":
            loss = source.choice([source.random(), float("nan"), 3])
            log(database, run_id, seqs[run_id], loss)
            seqs[run_id] += 1
        else:
            change(database, action, run_id, source)
            if action == "delete":
                del seqs[run_id]
        for place in (database, other):
            where, sort = source.choice(WHERES), source.choice(COLUMNS)
            sort = source.choice(["", "-"]) + sort
            for limit in (3, 200):
                found = ask(place, where=parse(where) if where else None, sort=sort, limit=limit)
                assert found == expected(database, where, sort), (turn, where, sort)
    other.close()


def change(database, action, run_id, source):
    with database.write() as session:
        run = lock_run(session, run_id)
        if action == "edit":
            edit_run(session, run, name=source.choice("xyz"))
            change_tags(session, [run_id], add=[source.choice("xy")])
        elif action == "archive":
            archive(session, [run_id], is_archived=source.random() < 0.5)
        elif action == "finish":
            finish_run(session, run_id, Finish(status="oom", error="no memory"), 500.0)
        else:
            delete_run(session, run_id)


def test_the_newest_scalars_of_ended_runs_are_read_when_they_arrive_late(database):
    start(database, "a")
    start(database, "a", rank=1)
    log(database, "a", 0, 0.5)
    with database.write() as session:
        for rank in (0, 1):
            finish_run(session, "a", Finish(status="completed", rank=rank), 2.0)
    assert ask(database, where="scalar.loss < 0.6") == ["a"]
    log(database, "a", 1, 0.7)
    assert ask(database, where="scalar.loss < 0.6") == []


def test_a_filter_matches_any_rank_and_an_order_takes_the_lowest(database):
    start(database, "a", rank=0)
    start(database, "a", rank=1)
    start(database, "b", rank=0)
    log(database, "a", 0, 3.0)
    log(database, "a", 0, 0.1, rank=1)
    log(database, "b", 0, 1.0)
    assert ask(database, where="scalar.loss < 0.5") == ["a"]
    assert ask(database, sort="scalar.loss") == ["b", "a"]


def test_a_clock_that_was_ahead_hides_no_later_change(database):
    start(database, "a", config={"x": 1})
    with database.write() as session:
        session.execute(update(RunRow).values(changed_at=4e9))
    assert ask(database, where="config.x = 1") == ["a"]
    start(database, "b", config={"x": 1})
    assert sorted(ask(database, where="config.x = 1")) == ["a", "b"]


def test_a_table_that_was_not_read_for_long_is_read_anew(database, monkeypatch):
    """Deletions are known for a day only."""
    start(database, "a", config={"x": 1})
    start(database, "b", config={"x": 1})
    assert len(ask(database, where="config.x = 1")) == 2
    with database.write() as session:
        delete_run(session, "a")
        session.query(run_table.RunDeletionRow).delete()
    monkeypatch.setattr(run_table, "_KEPT_DELETIONS_S", 0.0)
    assert ask(database, where="config.x = 1") == ["b"]
    with database.read() as session:
        assert table_of(session).read(session, []).ids == ["b"]


def test_a_run_may_come_back_after_its_deletion(database):
    start(database, "a", config={"x": 1})
    assert ask(database, sort="config.x") == ["a"]
    with database.write() as session:
        delete_run(session, "a")
    assert ask(database, sort="config.x") == []
    start(database, "a", config={"x": 2})
    assert ask(database, where="config.x = 2") == ["a"]


@pytest.mark.parametrize("limit", [1, 2])
def test_more_runs_than_the_table_takes_are_found_in_indexed_orders(database, monkeypatch, limit):
    monkeypatch.setattr(run_table, "MAX_TABLE_RUNS", 3)
    for number in range(5):
        start(database, f"r{number}", float(number), config={"x": number})
    assert ask(database, where="config.x != 2", limit=limit) == ["r4", "r3", "r1", "r0"]
    assert ask(database, sort="config.x", limit=limit) == ["r2", "r3", "r4"], "changed last"


def test_only_the_columns_asked_for_last_are_kept(database, monkeypatch):
    monkeypatch.setattr(run_table, "MAX_TABLE_COLUMNS", 2)
    start(database, "a", config={"x": 1, "y": 2, "z": 3})
    for name in "xyz":
        assert ask(database, where=f"config.{name} > 0") == ["a"]
    with database.read() as session:
        kept = table_of(session).read(session, []).columns
    assert column_of("config.x") not in kept and column_of("config.z") in kept
    monkeypatch.setattr(run_table, "MAX_TABLE_BYTES", 1)
    assert ask(database, where="config.x > 0") == ["a"]
    with database.read() as session:
        assert column_of("config.x") not in table_of(session).read(session, []).columns


def test_a_request_that_would_wait_for_long_is_asked_to_retry(database, monkeypatch):
    monkeypatch.setattr(run_table, "MAX_WAIT_S", 0.01)
    table = RunTable()
    errors = []

    def read():
        with database.read() as session:
            try:
                table.read(session, [])
            except BusyError as error:
                errors.append(error)

    with table._lock:
        thread = Thread(target=read)
        thread.start()
        thread.join()
    assert "retry" in str(errors[0])


def test_a_token_of_some_projects_finds_no_others(database):
    for project in ("nlp", "vision"):
        start(database, project, project=project, config={"x": 1})
    assert len(ask(database, sort="config.x")) == 2
    assert ask(database.limited_to(("nlp",)), sort="config.x") == ["nlp"]
    assert ask(database.limited_to(("nlp",)), where="config.x = 1") == ["nlp"]
    assert ask(database.limited_to(()), where="config.x = 1") == []
    assert ask(database.limited_to(("nlp",)), where='project = "vision"') == []


@pytest.mark.parametrize("value", [1, 2.5, True, "a'; DROP TABLE runs; --", [1], {"a": [2]}])
def test_a_key_may_have_any_name(database, value):
    names = ["a.b", "ä😀", "'; DROP TABLE runs; --", "$[0]", "%s", "a" * 200, "\\", "0"]
    for number, name in enumerate(names):
        start(database, f"r{number}", float(number), config={name: value})
    for number, name in enumerate(names):
        assert ask(database, where=f'config."{name}" != null') == [f"r{number}"], name
        assert ask(database, sort=f'config."{name}"')[0] == f"r{number}", name
