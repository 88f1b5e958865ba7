"""Stores that the real MLflow has written: a SQLite database, and a folder of files."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing

import pytest

from tests.agent.importer.conftest import values_of

STORES = ["mlflow.db", "mlruns"]

pytestmark = pytest.mark.xdist_group("importer")


def meta_files(folder):
    return sorted(folder.glob("mlruns/*/*/meta.yaml"))


def run_folder(folder, name):
    (file,) = (path for path in meta_files(folder) if f"run_name: {name}" in path.read_text())
    return file.parent


@pytest.mark.parametrize("store", STORES)
def test_a_run_has_scalars_config_tags_and_its_end(mlflow_folder, read, store):
    runs, problems = read("mlflow", mlflow_folder / store)
    assert problems == [] and {run.name for run in runs} == {"first try", "second try"}
    first, second = sorted(runs, key=lambda run: run.name)
    assert (first.project, first.status, second.status) == ("vision", "completed", "failed")
    assert first.config == {"lr": 0.1, "depth": 12, "optimizer": "adam", "amp": True}
    assert first.tags == ["team=red"]
    losses = values_of(first, "loss")
    assert losses[9] == pytest.approx(0.1) and math.isnan(losses[20]) and losses[21] == math.inf
    assert values_of(first, "val/accuracy")[10] == 0.5
    assert values_of(second, "loss") == {3: 2.0}
    assert 0 < first.started_at < first.finished_at


@pytest.mark.parametrize("store", STORES)
def test_its_system_metrics_are_readings_of_a_gpu(mlflow_folder, read, store):
    runs, _ = read("mlflow", mlflow_folder / store)
    (run,) = (run for run in runs if run.name == "first try")
    (gpu,) = run.devices.devices()
    assert (gpu.id, gpu.kind) == ("gpu0", "cuda")
    assert gpu.total_bytes == pytest.approx(1019e6 / 0.04)
    ((_, columns),) = run.devices.blocks(run.scalars.clock())
    used = columns["device_used_bytes"]
    assert (used[0], used[-1]) == (1_000_000_000, 1_019_000_000)


def test_nothing_in_the_database_changes(mlflow_folder, read):
    """MLflow itself would upgrade the database, or refuse it."""
    file = mlflow_folder / "mlflow.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("UPDATE alembic_version SET version_num = 'of another year'")
        database.commit()
    before = file.read_bytes()
    assert len(read("mlflow", file)[0]) == 2
    assert file.read_bytes() == before
    assert sorted(path.name for path in mlflow_folder.iterdir()) == ["mlflow.db", "mlruns"]


def test_a_database_grows_in_the_order_of_logging(mlflow_folder, read):
    file = mlflow_folder / "mlflow.db"
    before = {run.key: run for run in read("mlflow", file)[0]}
    with closing(sqlite3.connect(file)) as database:
        ((run_id,),) = database.execute("SELECT run_uuid FROM runs WHERE name = 'first try'")
        row = ("loss", -5.0, 2_000_000_000_000, run_id, 60, False)
        names = "(key, value, timestamp, run_uuid, step, is_nan)"
        database.execute(f"INSERT INTO metrics {names} VALUES (?, ?, ?, ?, ?, ?)", row)
        database.commit()
    after = {run.key: run for run in read("mlflow", file)[0]}
    assert after.keys() == before.keys()
    assert after[run_id].scalars.extends(before[run_id].scalars.extents())
    assert len(after[run_id].scalars) == len(before[run_id].scalars) + 1


def test_a_damaged_database_gives_what_can_be_read(mlflow_folder, read):
    file = mlflow_folder / "mlflow.db"
    content = bytearray(file.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    file.write_bytes(content)
    runs, problems = read("mlflow", file)
    said = problems + [note for run in runs for note in run.notes]
    assert said and all(str(file) in sentence for sentence in said)


def test_a_damaged_schema_is_a_problem(mlflow_folder, read):
    """SQLite's message quotes it, and isn't UTF-8 then."""
    file = mlflow_folder / "mlflow.db"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"CREATE TABLE ", b"CREATE TABL\xff ", 1))
    runs, (problem,) = read("mlflow", file)
    assert runs == [] and problem == f"{file}: its schema is damaged"


def test_huge_texts_of_a_database_are_refused(mlflow_folder, read):
    file = mlflow_folder / "mlflow.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("UPDATE params SET value = zeroblob(50000000) WHERE key = 'optimizer'")
        database.commit()
    runs, problems = read("mlflow", file)
    assert len(runs) < 2 and "mlflow.db: string or blob too big" in problems[0]


def test_another_database_is_named(tmp_path, read):
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE t (x)")
        database.commit()
    assert read("mlflow", tmp_path) == ([], [])
    assert "not one of MLflow" in read("mlflow", file)[1][0]


def test_a_torn_line_and_one_of_no_number_are_counted(mlflow_folder, read):
    folder = run_folder(mlflow_folder, "second try")
    with (folder / "metrics" / "loss").open("a") as file:
        file.write(
            "1700000000000 many 4\none two three four\n1700000000000 0.5 5\n1700000000000 0.1"
        )
    runs, _ = read("mlflow", folder)
    assert values_of(runs[0], "loss") == {3: 2.0, 5: 0.5}
    assert runs[0].skipped == {"damaged line": 2, "value without a number": 1}


def test_links_out_of_the_store_are_not_followed(mlflow_folder, read, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("1700000000000 42 0\n")
    folder = run_folder(mlflow_folder, "second try")
    (folder / "metrics" / "secret").symlink_to(outside / "secret")
    (folder / "params").rmdir()
    (folder / "params").symlink_to(outside)
    ((run,), _) = read("mlflow", folder)
    assert run.config == {} and run.scalars.names == ["loss"]


@pytest.mark.parametrize(
    "text",
    [
        "run_id: &a [x]\nstatus: *a\nrun_name: *a\nuser_id: {b: *a}\nlifecycle_stage: active\n",
        "run_id: x\nstatus: [3]\nstart_time: .nan\nend_time: {}\n",
        "[" * 20_000,
        "run_id: x\n\x00",
        "- a list",
    ],
    ids=range(5),
)
def test_a_description_of_any_kind_gives_a_run_or_nothing(mlflow_folder, read, text):
    file = meta_files(mlflow_folder)[0]
    file.write_text(text)
    runs, problems = read("mlflow", mlflow_folder / "mlruns")
    assert 1 <= len(runs) <= 3
    assert all(str(file) in problem for problem in problems)


def test_a_bomb_of_aliases_stays_small(mlflow_folder, read):
    lines = [
        "a0: &a0 lol",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)),
    ]
    meta_files(mlflow_folder)[0].write_text("\n".join([*lines, "run_id: *a39", "run_name: *a39"]))
    runs, _ = read("mlflow", mlflow_folder / "mlruns")
    assert all(len(run.name) < 100 for run in runs)
