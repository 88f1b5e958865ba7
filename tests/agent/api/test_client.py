"""One API over a server, a database and a folder of run files."""

from __future__ import annotations

import pytest

import memagent
from memagent.errors import MemagentError, SettingError


def test_every_source_answers_alike(source):
    with memagent.Api(source) as api:
        assert [run.id for run in api.runs()] == ["death", "second", "first"]
        assert [run.id for run in api.runs(where="config.lr < 1e-3", order="name")] == [
            "death",
            "second",
        ]
        assert [run.id for run in api.runs(tags=["x", "y"])] == ["second"]
        assert [run.id for run in api.runs(tags="x", where='config.optimizer.name = "adam"')] == [
            "second"
        ]
        assert [run.id for run in api.runs(status="oom", project="default")] == ["death"]
        assert len(api.runs(where='scalar.loss < 1 and "x" in tags')) == 2
        assert not api.runs(project="nothing")
        run = api.run("death")
        assert (run.status, run.config, run.world_size) == ("oom", {"lr": 1e-4}, 2)
        assert run.prediction["peak_allocated_bytes"] == 2 * 2**30
        assert [suspect["line"] for suspect in run.suspects] == [42]
        assert run.suspects[0]["ranks"] == [0, 1]
        assert run.forecasts == [] and run.alerts == []
        report = run.report()
        assert report["out_of_memory"]["cause"] == "leak"
        assert "train.py:42" in report["out_of_memory"]["changes"][0]["change"]
        assert api.run("first").report()["out_of_memory"] is None


def test_every_source_orders_by_any_column_and_has_those_that_were_chosen(source):
    columns = ["config.lr", 'config."optimizer".name', "scalar.loss", "tags", "config.none"]
    with memagent.Api(source) as api:
        orders = {
            order: [run.id for run in api.runs(order=order)]
            for order in ("config.lr", "-config.lr", "config.optimizer.name", "-scalar.loss")
        }
        assert orders == {
            "config.lr": ["death", "second", "first"],
            "-config.lr": ["first", "second", "death"],
            "config.optimizer.name": ["second", "death", "first"],
            "-scalar.loss": ["second", "first", "death"],
        }
        second = api.runs(columns=columns)[1]
        assert second.columns == {
            "config.lr": 1e-4,
            'config."optimizer".name': "adam",
            "scalar.loss": 1 / 1000,
            "tags": ["x", "y"],
            "config.none": None,
        }
        assert api.runs(columns="status", order="-name")[0].columns == {"status": "completed"}
        assert api.runs()[0].columns == {}


def test_every_source_has_the_whole_history(source):
    with memagent.Api(source) as api:
        history = api.run("death").history()
        assert len(history) == 2000 and history.missing_samples == 0
        rows = history.to_dict()
        assert rows["rank"] == [0] * 1000 + [1] * 1000
        assert rows["step"] == list(range(1000)) * 2
        assert set(rows["device"]) == {"GPU-1"}
        assert rows["allocated_bytes"][:3] == [2**30, 2**30 + 1000, 2**30 + 2000]
        assert rows["power_w"][:4] == [0.0, None, None, 1.5]
        assert rows["segments"][499:501] == [None, 500]
        assert rows["time_s"] == [2000.0 + step / 7 for step in range(1000)] * 2
        peak = api.run("death").peak_bytes
        ids = [run.id for run in api.runs(where=f"peak_bytes >= {peak}", order="-peak_bytes")]
        assert "death" in ids and set(ids) <= {run.id for run in api.runs()}
        assert "death" not in {run.id for run in api.runs(where=f"peak_bytes < {peak}")}
        part = api.run("death").history(["peak_allocated_bytes"], ranks=[1], steps=(290, 310))
        assert list(part.columns) == [
            *("rank", "device", "attempt"),
            *("step", "time_s", "peak_allocated_bytes"),
        ]
        assert part.to_dict()["step"] == list(range(290, 311))
        assert part.to_dict()["rank"] == [1] * 21
        assert api.run("first").scalars(["loss"]).to_dict()["loss"][9] == 0.1
        assert api.run("first").history(["loss"]).to_dict()["loss"][9] == 0.1


def test_a_missing_run_and_field_are_one_sentence(source):
    with memagent.Api(source) as api:
        with pytest.raises(MemagentError, match="'nobody'"):
            api.run("nobody")
        with pytest.raises(AttributeError, match="no field 'stats'; the nearest is 'status'"):
            api.run("first").stats  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"where": "peak_ration > 1"}, "the nearest is 'peak_ratio'"),
        ({"status": "fail"}, "the nearest is 'failed'"),
        ({"order": "-peak_ration"}, "sort: .* the nearest is 'peak_ratio'"),
        ({"columns": ["config.lr", "lr"]}, "columns: .*write config.lr"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_read(folder, arguments, words):
    with pytest.raises(SettingError, match=words):
        memagent.Api(folder).runs(**arguments)


def test_a_run_is_edited_and_deleted(start_server):
    server = start_server()
    server.post("/api/v1/runs", {"run_id": "ab"})
    for source in (server.url, server.database_url):
        with memagent.Api(source) as api:
            run = api.run("ab")
            run.edit(name="best", notes="Batch 16 fits.", tags="kept")
            assert (run.name, run.notes, run.tags) == ("best", "Batch 16 fits.", ["kept"])
            run.edit(notes="", is_archived=True)
            assert [item.name for item in api.runs(is_archived=True)] == ["best"]
            with pytest.raises(MemagentError, match="name"):
                run.edit(name="")
            run.edit(is_archived=False)
    with memagent.Api(server.url) as api:
        api.run("ab").delete()
        with pytest.raises(MemagentError, match="'ab'"):
            api.run("ab")


def test_runs_are_grouped_changed_and_deleted_together(start_server):
    server = start_server()
    for run_id, lr in (("a", 1), ("b", 1), ("c", 2)):
        server.post("/api/v1/runs", {"run_id": run_id, "config": {"lr": lr}})
    for source in (server.url, server.database_url):
        with memagent.Api(source) as api:
            groups = api.groups(["config.lr", "status"], columns="world_size")
            keys = [group["key"] for group in groups if group["groups"]]
            assert keys == [{"config.lr": 1}, {"config.lr": 2}]
            assert groups[0]["columns"]["world_size"]["mean"] == 1.0
            assert api.groups("project", where="config.lr = 1", order="value")[0]["runs"] == 2
            api.edit(api.runs(where="config.lr = 1"), add_tags="ones", notes="Together.")
            assert len(api.runs(tags="ones")) == 2
            api.edit(["a", "b"], add_notes="Once more.")
            assert api.run("a").notes == "Together.\n\nOnce more."
            with pytest.raises(MemagentError, match="notes: those of run 'a' would have 20,0"):
                api.edit(["b", "a"], add_notes="x" * 19_990)
            assert api.run("b").notes == "Together.\n\nOnce more."
            api.edit(["a", "b"], remove_tags=["ones"])
            with pytest.raises(MemagentError, match="'nobody'"):
                api.edit(["a", "nobody"], name="n")
            with pytest.raises(MemagentError, match="by: there is no column"):
                api.groups("lr")
    with memagent.Api(server.url) as api:
        api.delete(api.runs(where="config.lr = 1"))
        assert [run.id for run in api.runs()] == ["c"]


def test_the_source_is_that_of_the_settings(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMAGENT_DIR", str(folder))
    assert len(memagent.Api().runs()) == 3
    monkeypatch.setenv("MEMAGENT_DATABASE_URL", f"sqlite:///{tmp_path}/none.db")
    with pytest.raises(MemagentError, match="memagent db upgrade"):
        memagent.Api()
    monkeypatch.setenv("MEMAGENT_SERVER", "http://127.0.0.1:1")
    with pytest.raises(MemagentError, match="memagent serve"):
        memagent.Api().runs()[0]
    with pytest.raises(MemagentError, match="not a folder of run files"):
        memagent.Api(tmp_path / "nowhere")


def test_runs_are_read_as_far_as_they_are_looked_at(folder):
    runs = memagent.Api(folder).runs()
    assert "0 or more" in repr(runs)
    assert runs[0].id == "death"
    assert [run.id for run in runs[1:]] == ["second", "first"]
    assert runs[-1].id == "first"
    with pytest.raises(IndexError):
        runs[3]
