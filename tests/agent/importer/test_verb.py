"""`memagent import` into a folder and to a real server, where runs look like any others."""

from __future__ import annotations

import json
import sys
from contextlib import closing

import pytest

import memagent
from memagent.cli import main
from tests.agent.importer.conftest import needed

pytestmark = pytest.mark.xdist_group("importer")


@pytest.fixture
def imported(capsys):
    """Import with arguments: imported(*arguments) -> (exit status, object, stderr)."""

    def run(*arguments):
        status = main(["import", "--json", *map(str, arguments)])
        output = capsys.readouterr()
        return status, json.loads(output.out), output.err

    return run


@pytest.fixture
def api(live_server):
    with closing(memagent.Api(live_server.url)) as stored:
        yield stored


def scalar(api, run_id, name):
    history = api.run(run_id).scalars([name]).to_dict()
    return dict(zip(history["step"], history[name], strict=True))


def test_runs_of_all_trackers_in_one_folder_are_found(
    event_folder, wandb_file, mlflow_folder, tmp_path, imported, capsys
):
    (tmp_path / "x.wandb").write_bytes(wandb_file.read_bytes())
    status, result, errors = imported(tmp_path, "--to", tmp_path / "runs")
    counts = {
        tracker: [run["source"] for run in result["runs"]].count(tracker)
        for tracker in ("tensorboard", "wandb", "mlflow")
    }
    # each store of MLflow has runs of its own
    assert (status, counts, errors) == (0, {"tensorboard": 1, "wandb": 1, "mlflow": 4}, "")
    api = memagent.Api(tmp_path / "runs")
    assert {run.id for run in api.runs()} == {run["run_id"] for run in result["runs"]}
    (first,) = api.runs(project="vision", tags=["baseline"])
    assert (first.name, first.status, first.config["lr"]) == ("first try", "completed", 0.1)
    assert scalar(api, first.id, "loss")[9] == pytest.approx(0.1)
    assert main(["runs", "--json"]) == 0
    capsys.readouterr()


def test_a_second_import_says_that_nothing_is_new(wandb_file, tmp_path, imported, capsys):
    imported(wandb_file, "--to", tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    status, result, _ = imported(wandb_file, "--to", tmp_path)
    assert (status, result["runs"][0]["outcome"]) == (0, "known")
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert main(["import", str(wandb_file), "--to", str(tmp_path)]) == 0
    assert "401 points of 3 scalars, nothing new (completed)" in capsys.readouterr().out


def test_a_dry_run_writes_nothing(wandb_file, tmp_path, imported):
    folder = tmp_path / "runs"
    status, result, _ = imported(wandb_file, "--to", folder, "--dry-run", "--project", "mine")
    (run,) = result["runs"]
    assert (status, run["outcome"], run["project"], run["points"]) == (0, "recorded", "mine", 401)
    assert not folder.exists()


def test_imported_runs_are_on_the_server_like_any_other(
    live_server, api, wandb_file, event_folder, mlflow_folder, imported
):
    paths = (wandb_file, event_folder, mlflow_folder / "mlflow.db")
    status, result, errors = imported(*paths, "--server", live_server.url)
    assert (status, errors) == (0, "")
    assert {run["outcome"] for run in result["runs"]} == {"uploaded"}
    (run,) = api.runs(project="vision", tags=["baseline"], where="config.lr < 1")
    losses = scalar(api, run.id, "loss")
    assert len(losses) == 200 and losses[9] == pytest.approx(0.1)
    page = live_server.get(f"/runs/{run.id}").body.decode()
    assert "first try" in page and "baseline" in page
    # what the page draws
    drawn = live_server.get(f"/api/v1/runs/{run.id}/series?rank=0&device=scalars&fields=*").json
    assert set(drawn["series"]) == {"loss", "eval.accuracy", "best"}
    assert drawn["series"]["eval.accuracy"]["last"][100] == 0.5
    listed = live_server.get("/").body.decode()
    assert all(run["name"] in listed for run in result["runs"])
    (gpu_run,) = (run for run in result["runs"] if run["readings"])
    stored = live_server.get(f"/api/v1/runs/{gpu_run['run_id']}").json
    assert stored["peak_bytes"] == 1_019_000_000 and stored["config"]["optimizer"] == "adam"


def test_a_run_that_grows_gets_only_what_is_new_on_the_server(
    live_server, api, wandb_file, tmp_path, imported
):
    file = tmp_path / "run.wandb"
    content = wandb_file.read_bytes()
    for size in (len(content) // 3, len(content) // 2, len(content)):
        file.write_bytes(content[:size])
        for _ in range(2):
            status, result, _ = imported(file, "--server", live_server.url)
            assert status == 0
    (run,) = result["runs"]
    assert run["outcome"] == "known"
    stored = live_server.get(f"/api/v1/runs/{run['run_id']}").json
    assert stored["status"] == "completed" and stored["step"] == 199
    assert len({stream["attempt"] for stream in stored["streams"]}) == 1
    history = api.run(run["run_id"]).scalars(["loss"]).to_dict()
    logged = [step for step, loss in zip(history["step"], history["loss"], strict=True) if loss]
    assert sorted(logged) == list(range(200))


def test_another_folder_and_sync_give_no_run_twice(
    live_server, api, wandb_file, tmp_path, imported, capsys
):
    for name in ("one", "two"):
        imported(wandb_file, "--to", tmp_path / name)
        assert main(["sync", str(tmp_path / name), "--server", live_server.url]) == 0
        capsys.readouterr()
    status, result, _ = imported(wandb_file, "--server", live_server.url)
    assert (status, result["runs"][0]["outcome"]) == (0, "uploaded")
    (run,) = api.runs()
    assert len(scalar(api, run.id, "loss")) == 200
    assert len(live_server.get(f"/api/v1/runs/{run.id}").json["streams"]) == 1


def test_what_cannot_be_read_is_named_and_the_rest_is_imported(wandb_file, tmp_path, imported):
    source = tmp_path / "source"
    source.mkdir()
    (source / "broken\x1b[31m.wandb").write_bytes(b"text")
    (source / "good.wandb").write_bytes(wandb_file.read_bytes())
    status, result, errors = imported(source, "--to", tmp_path / "runs")
    assert (status, len(result["runs"])) == (1, 1)
    assert "broken?[31m.wandb isn't a W&B file" in errors and "\x1b" not in errors


def test_a_server_that_is_away_leaves_files_for_sync(wandb_file, monkeypatch, tmp_path, imported):
    monkeypatch.setattr("memagent.delivery.upload.MAX_ATTEMPTS", 1)
    monkeypatch.setenv("MEMAGENT_DIR", str(tmp_path))
    status, result, errors = imported(wandb_file, "--server", "http://127.0.0.1:9")
    (run,) = result["runs"]
    assert (status, run["outcome"]) == (1, "waiting") and "run `memagent sync`" in errors
    assert next(tmp_path.glob("*.memagent")).name in run["path"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["http://tracking.example"], "is a server: give the files"),
        (["nowhere"], "nowhere does not exist"),
        ([".", "--to", "x", "--server", "http://x"], "not both"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(arguments, sentence, capsys):
    assert main(["import", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_without_runs_is_an_error(tmp_path, capsys):
    assert main(["import", str(tmp_path)]) == 1
    assert "no run of tensorboard, wandb, mlflow in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("package", "name"),
    [("wandb", "x.wandb"), ("tensorboard", "events.out.tfevents.1.box"), ("yaml", "meta.yaml")],
)
def test_a_missing_package_is_named_with_what_installs_it(
    package, name, tmp_path, monkeypatch, capsys
):
    needed("wandb")
    (tmp_path / name).write_text("")
    for module in [package, *(key for key in sys.modules if key.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["import", str(tmp_path), "--to", str(tmp_path / "runs")]) == 1
    assert "pip install 'memagent[import]'" in capsys.readouterr().err
