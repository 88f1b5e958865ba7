"""Groups of runs: nested, with figures, ordered and bounded, of the runs that one may see."""

from __future__ import annotations

import pytest

from memagent.errors import FilterError
from memagent.filters.parser import parse
from memagent.wire.messages import Batch, Chunk, Device, RunStart
from memagent_server.store import run_groups
from memagent_server.store.run_groups import group_runs
from memagent_server.store.run_list import RunQuery
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch

GPU = Device(id="gpu", kind="cuda", name="GPU", limit_bytes=1000, total_bytes=1000)
CONFIGS = {
    "a": {"optimizer": "adam", "lr": 1e-3},
    "b": {"optimizer": "adam", "lr": 1e-3},
    "c": {"optimizer": "adam", "lr": 0.1},
    "d": {"optimizer": "sgd", "lr": 0.1},
    "e": {"lr": "0.1"},
}


@pytest.fixture
def runs(database):
    with database.write() as session:
        for number, (run_id, config) in enumerate(CONFIGS.items()):
            facts = {"project": "p" if number < 3 else "q", "devices": [GPU]}
            start_run(session, RunStart(run_id=run_id, config=config, **facts), float(number))
            columns = {"step": [1], "time_s": [1.0]}
            losses = Chunk(stream="scalars", columns={**columns, "loss": [float(number)]})
            peaks = Chunk(stream="gpu", columns={**columns, "peak_allocated_bytes": [100 * number]})
            add_batch(session, run_id, Batch(seq=0, chunks=[losses, peaks]), 9.0)
    return database


def group(database, by, limit=50, where=None, project=None, **options):
    with database.read() as session:
        query = RunQuery(limit=limit, where=parse(where) if where else None, project=project)
        return group_runs(session, query, by, **options)


def test_groups_are_nested_and_each_counts_its_runs(runs):
    result = group(runs, "config.optimizer,config.lr")
    assert [(list(item.key.values()), item.runs, item.groups) for item in result.groups] == [
        (["adam"], 3, 2),
        (["adam", 1e-3], 2, 0),
        (["adam", 0.1], 1, 0),
        (["sgd"], 1, 1),
        (["sgd", 0.1], 1, 0),
        ([None], 1, 1),
        ([None, "0.1"], 1, 0),
    ]
    assert result.total == 3
    assert result.groups[1].key == {"config.optimizer": "adam", "config.lr": 1e-3}


def test_figures_are_those_of_numbers(runs):
    adam, *_ = group(runs, "config.optimizer", columns="scalar.loss,config.lr,status").groups
    loss = adam.columns["scalar.loss"]
    assert (loss.runs, loss.min, loss.mean, loss.max) == (3, 0.0, 1.0, 2.0)
    assert (adam.peak_bytes.min, adam.peak_bytes.max) == (0, 200)
    assert adam.columns["status"].runs == 0 and adam.columns["status"].mean is None
    assert adam.statuses == {"running": 3}
    assert (adam.columns["status"].commonest, adam.columns["status"].values) == ("running", 1)
    whole = group(runs, "status", columns="config.optimizer").groups[0]
    assert whole.columns["config.optimizer"].commonest == "adam"
    assert whole.columns["config.optimizer"].values == 2
    lrs = group(runs, "project", columns="config.lr").groups[1].columns["config.lr"]
    assert (lrs.runs, lrs.max) == (1, 0.1), "the text isn't a number"


@pytest.mark.parametrize(
    ("order", "values"),
    [
        ("-runs", [1e-3, 0.1, "0.1"]),
        ("runs", ["0.1", 1e-3, 0.1]),
        ("value", [1e-3, 0.1, "0.1"]),
        ("-value", ["0.1", 0.1, 1e-3]),
        ("scalar.loss", [1e-3, 0.1, "0.1"]),
        ("-scalar.loss", ["0.1", 0.1, 1e-3]),
    ],
)
def test_groups_have_an_order(runs, order, values):
    result = group(runs, "config.lr", order=order, columns="scalar.loss")
    assert [item.key["config.lr"] for item in result.groups] == values


def test_filters_and_tokens_choose_the_runs(runs):
    assert group(runs, "project", where="config.lr = 0.1").total == 2
    assert group(runs, "status", project="q").groups[0].runs == 2
    scoped = group(runs.limited_to(("q",)), "project")
    assert [item.key for item in scoped.groups] == [{"project": "q"}]
    assert group(runs.limited_to(()), "project").groups == []


def test_many_groups_are_cut_and_counted(database, monkeypatch):
    with database.write() as session:
        for number in range(12):
            config = {"x": number, "y": number % 3}
            start_run(session, RunStart(run_id=f"r{number:02}", config=config), 1.0)
    result = group(database, "config.x", limit=5, order="value")
    assert [item.key["config.x"] for item in result.groups] == [0, 1, 2, 3, 4]
    assert result.total == 12
    monkeypatch.setattr(run_groups, "MAX_GROUPS", 4)
    result = group(database, "config.y,config.x")
    assert len(result.groups) == 4 and result.groups[0].groups == 4


def test_values_of_any_type_are_groups_that_json_can_hold(client):
    values = [True, 1, 1.5, "x", [1, {"a": 2}], {"deep": 1}, None, ["x" * 2_000], "NaN"]
    for number, value in enumerate(values):
        client.post("/api/v1/runs", json={"run_id": f"r{number}", "config": {"v": value}})
    answer = client.get("/api/v1/groups?by=config.v&sort=value")
    assert answer.status_code == 200
    shown = [item["key"]["config.v"] for item in answer.json["groups"]]
    assert shown[:5] == [True, 1, 1.5, "NaN", "x"] and shown[-1] is None
    assert [1, {"a": 2}] in shown and {"deep": 1} in shown
    assert any(isinstance(item, str) and item.endswith("…") for item in shown)


def test_the_api_says_which_part_of_a_wrong_question_is_wrong(client, runs):
    for query, field in (
        ("by=lr", "by"),
        ("by=,", "by"),
        ("by=name,user,host,project", "by"),
        ("by=name&columns=lr", "columns"),
        ("by=name&sort=scalar.loss", "sort"),
    ):
        answer = client.get(f"/api/v1/groups?{query}")
        assert (answer.status_code, answer.json["field"]) == (422, field), query
    with pytest.raises(FilterError, match="by: name 1 to 3 columns"):
        group(runs, "")


def test_a_search_is_of_the_runs_that_it_finds(client):
    for run_id in ("apple", "apply", "bee"):
        client.post("/api/v1/runs", json={"run_id": run_id})
    answer = client.get("/api/v1/groups?by=status&q=appl")
    assert answer.json["groups"][0]["runs"] == 2
