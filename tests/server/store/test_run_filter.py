"""Filters in SQL find, on both databases, the runs that the same filter finds in Python."""

from __future__ import annotations

import itertools
import random

import pytest
from sqlalchemy import select, text

from memagent.filters.columns import RUN_COLUMNS
from memagent.filters.expression import Condition, Conjunction, Negation, config_values, matches
from memagent.filters.parser import parse
from memagent.wire.messages import Batch, Chunk, Device, Finish, RunStart
from memagent_server.store.models import RunRow, StreamRow
from memagent_server.store.run_columns import column_names
from memagent_server.store.run_filter import PEAK_OF_RUN, condition_of
from memagent_server.store.run_list import RunQuery, find_runs, list_runs
from memagent_server.store.runs import finish_run, start_run
from memagent_server.store.samples import add_batch

CONFIGS = {
    "a": {"lr": 1e-3, "amp": True, "optimizer": {"name": "AdamW", "a.b": 1}},
    "b": {"lr": 3, "amp": False, "optimizer": "sgd"},
    "c": {"lr": "0.001", "amp": 1, "optimizer": {"name": "Größe"}},
    "d": {"lr": None, "amp": "true", "optimizer": ["AdamW"]},
    "e": {"lr": 0.30000000000000004, "optimizer": {"name": None}},
    "f": {"lr": -(2**60), "amp": [], "optimizer": {}},
    "g": {},
}
FACTS = {
    "a": {"name": "alpha", "user": "ana", "tags": ["x", "y"], "total_steps": 10},
    "b": {"name": "Beta", "tags": ["y"]},
    "c": {"name": "größe", "project": "nlp"},
}
SCALARS = {"a": {"loss": 0.5}, "b": {"loss": 2.0, "eval/acc": 0.9}, "d": {"eval/acc": 0.1}}
OPERANDS = (
    1e-3,
    3,
    0.30000000000000004,
    -(2**60),
    "0.001",
    "AdamW",
    "Größe",
    "",
    True,
    False,
    None,
)


@pytest.fixture
def runs(database):
    with database.write() as session:
        for now, (run_id, config) in enumerate(CONFIGS.items()):
            start = RunStart(run_id=run_id, config=config, **FACTS.get(run_id, {}))
            start_run(session, start, 100.0 + now)
            columns = {"step": [now], "time_s": [1.0]}
            scalars = {name: [value] for name, value in SCALARS.get(run_id, {}).items()}
            chunk = Chunk(stream="scalars", columns=columns | scalars)
            add_batch(session, run_id, Batch(seq=0, chunks=[chunk]), 200.0)
        finish_run(session, "b", Finish(status="oom", error="out of memory"), 300.0)
    return database


def find(database, expression):
    with database.read() as session:
        return {run.id for run in find_runs(session, RunQuery(where=expression))[0]}


def lookups(database):
    """Return {run: the values of a column, read from the rows}."""
    with database.read() as session:
        rows = {row.id: row for row in session.query(RunRow)}
        latest = {row.run_id: row.latest for row in session.query(StreamRow)}
        peaks = dict(session.query(RunRow.id, PEAK_OF_RUN).all())

    def lookup_of(row):
        def lookup(column):
            if column.source == "config":
                return config_values(row.config, column.path)
            if column.source == "scalar":
                return config_values(latest[row.id], column.path)
            if column.path == ("peak_bytes",):
                return [peaks[row.id]]
            value = getattr(row, column.path[0])
            return value if isinstance(value, list) else [value]

        return lookup

    return {run_id: lookup_of(row) for run_id, row in rows.items()}


def test_every_comparison_finds_the_same_runs_as_in_python(runs):
    columns = [
        parse(f"{name} = null").column
        for name in (
            *RUN_COLUMNS,
            "config.lr",
            "config.amp",
            "config.optimizer",
            "config.optimizer.name",
            'config.optimizer."a.b"',
            "config.optimizer.0",
            "scalar.loss",
            "scalar.eval/acc",
            "scalar.nothing",
        )
    ]
    values = lookups(runs)
    comparisons = []
    for column, operator, operand in itertools.product(columns, COMPARISONS, OPERANDS):
        if is_allowed(column, operator, operand):
            comparisons.append(Condition(column, operator, operand))
    assert len(comparisons) > 500
    for comparison in comparisons:
        for expression in (comparison, Negation(comparison)):
            expected = {run_id for run_id in values if matches(expression, values[run_id])}
            assert find(runs, expression) == expected, expression
    for first, second in zip(comparisons, random.Random(0).sample(comparisons, 100), strict=False):
        expression = Conjunction((Negation(first), second))
        expected = {run_id for run_id in values if matches(expression, values[run_id])}
        assert find(runs, expression) == expected, expression


COMPARISONS = ("=", "!=", "<", "<=", ">", ">=")


def is_allowed(column, operator, operand):
    """As `check_operand`, which refuses the rest."""
    if (operand is None or isinstance(operand, bool)) and operator not in ("=", "!="):
        return False
    kind = RUN_COLUMNS[column.path[0]] if column.source == "run" else None
    if kind is None or operand is None:
        return True
    if kind == "tags":
        return operator == "=" and isinstance(operand, str)
    is_number = isinstance(operand, int | float) and not isinstance(operand, bool)
    return is_number if kind in ("number", "time") else isinstance(operand, str)


@pytest.mark.parametrize(
    ("where", "run_ids"),
    [
        ("config.lr < 1 and scalar.loss < 1", {"a"}),
        ('status = "oom" or "x" in tags', {"a", "b"}),
        ('"y" in tags and not "x" in tags', {"b"}),
        ("created_at >= 105", {"f", "g"}),
        ("finished_at != null", {"b"}),
        ('name > "b"', {"c", "d", "e", "f", "g"}),
    ],
)
def test_a_filter_selects_runs(runs, where, run_ids):
    assert find(runs, parse(where)) == run_ids


@pytest.mark.parametrize(
    ("where", "run_ids"),
    [
        ("peak_bytes > 60GiB", {"b", "c"}),
        ("peak_bytes <= 60GiB", {"a"}),
        ("peak_bytes = null", {"d"}),
        ("not peak_bytes > 60GiB and peak_ratio >= 0.5", {"a"}),
    ],
)
def test_the_peak_is_that_of_the_device_nearest_to_its_limit(database, where, run_ids):
    peaks = {"a": (8, 16, 100, 1000), "b": (64, 80, 10, 1000), "c": (None, None, 70, None), "d": ()}
    with database.write() as session:
        for run_id, sizes in peaks.items():
            devices = [
                Device(id=name, kind=kind, name=name, limit_bytes=limit and limit * 2**30)
                for name, kind, limit in zip(
                    ("gpu", "host"), ("cuda", "host"), sizes[1::2], strict=False
                )
            ]
            start_run(session, RunStart(run_id=run_id, devices=devices), 100.0)
            chunks = [
                Chunk(stream=name, columns={"step": [1], "time_s": [1.0], "peak_allocated_bytes": [peak * 2**30]})
                for name, peak in zip(("gpu", "host"), sizes[::2], strict=False)
                if peak
            ]  # fmt: skip
            add_batch(session, run_id, Batch(seq=0, chunks=chunks), 200.0)
    expression = parse(where)
    assert find(database, expression) == run_ids
    with database.read() as session:
        dialect = session.get_bind().dialect.name
        in_sql = session.scalars(select(RunRow.id).where(condition_of(expression, dialect)))
        assert set(in_sql) == run_ids
        page = list_runs(session, RunQuery(sort="-peak_bytes"), columns="peak_bytes")
    assert [(run.id, run.columns["peak_bytes"]) for run in page.runs] == [
        ("c", 70 * 2**30), ("b", 64 * 2**30), ("a", 8 * 2**30), ("d", None)
    ]  # fmt: skip
    assert {run.id for run in page.runs if run.columns["peak_bytes"] != run.peak_bytes} == {"c"}


def test_a_number_that_no_double_holds_fails_no_filter(database):
    with database.write() as session:
        start_run(session, RunStart(run_id="a"), 1.0)
        session.execute(text("UPDATE runs SET config = '{\"lr\": 1e400}'"))
    assert find(database, parse("config.lr > 1e19")) == {"a"}


def test_a_list_by_tag_can_be_filtered_by_another_tag(runs):
    with runs.read() as session:
        query = RunQuery(tag="y", where=parse('"x" in tags and scalar.loss < 1'))
        assert [run.id for run in find_runs(session, query)[0]] == ["a"]


def test_pages_of_a_filter_neither_skip_nor_repeat(database):
    with database.write() as session:
        for number in range(25):
            start_run(session, RunStart(run_id=f"r{number:02}", config={"n": number}), number / 10)
    found, cursor = [], None
    while True:
        query = RunQuery(where=parse("config.n >= 5"), limit=7, cursor=cursor, sort="created_at")
        with database.read() as session:
            page = list_runs(session, query)
        found += [run.id for run in page.runs]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == [f"r{number:02}" for number in range(5, 25)]


def test_the_api_filters_and_names_the_wrong_column(client):
    for run_id, lr in (("a", 1e-3), ("b", 1.0)):
        client.post("/api/v1/runs", json={"run_id": run_id, "config": {"lr": lr}})
    answer = client.get("/api/v1/runs", query_string={"where": "config.lr < 0.1"})
    assert [run["id"] for run in answer.json["runs"]] == ["a"]
    answer = client.get("/api/v1/runs", query_string={"where": "peak_ration > 0.1"})
    assert answer.status_code == 422
    assert answer.json["field"] == "where"
    assert "the nearest is 'peak_ratio'" in answer.json["detail"]


def test_the_api_orders_by_any_column_and_returns_chosen_ones(client):
    for run_id, lr in (("a", 1.0), ("b", "big"), ("c", None), ("d", 1e-3)):
        client.post("/api/v1/runs", json={"run_id": run_id, "config": {"lr": lr, "x,y": [lr]}})
    query = {"sort": "-config.lr", "columns": 'config.lr, config."x,y",status', "limit": 3}
    answer = client.get("/api/v1/runs", query_string=query)
    assert [run["id"] for run in answer.json["runs"]] == ["b", "a", "d"]
    columns = {"config.lr": "big", 'config."x,y"': ["big"], "status": "running"}
    assert answer.json["runs"][0]["columns"] == columns
    rest = client.get(
        "/api/v1/runs",
        query_string={**query, "cursor": answer.json["next_cursor"], "fields": "columns"},
    )
    columns = {"config.lr": None, 'config."x,y"': [None], "status": "running"}
    assert rest.json == {"runs": [{"id": "c", "columns": columns}], "next_cursor": None}
    for name, wrong in (("sort", "peak_ration"), ("columns", "lr")):
        refused = client.get("/api/v1/runs", query_string={name: wrong})
        assert (refused.status_code, refused.json["field"]) == (422, name)
    differing = client.get("/api/v1/runs?columns=differing&sort=config.lr").json["runs"]
    assert differing[0]["columns"] == {'config."x,y"': [0.001], "config.lr": 0.001}


def test_each_named_column_selects_the_runs_that_have_a_value(database, runs):
    with database.read() as session:
        names = column_names(session, [*CONFIGS])
        assert 'config.optimizer."a.b"' in names
        assert "scalar.eval/acc" in names
        assert "scalar.step" not in names
        dialect = session.get_bind().dialect.name
        for name in names:
            chosen = condition_of(parse(f"{name} != null"), dialect)
            if name.startswith(("config.", "scalar.")) and name != "config.optimizer.name":
                assert session.scalars(select(RunRow.id).where(chosen)).all(), name
