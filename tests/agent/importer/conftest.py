"""Runs that the real trackers have written, once for all tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from memagent.importer import mlflow, tensorboard, wandb
from memagent.importer.source_run import SourceRun
from tests.waiting import wait_until

WANDB = """
import math, sys, wandb
settings = wandb.Settings(x_disable_stats=True, console="off")
run = wandb.init(
    mode="offline", project="vision", name="first try", id="abc123", dir=sys.argv[1],
    config={"lr": 0.1, "model": {"depth": 12}, "api_key": "sk-0123456789abcdef0123"},
    tags=["baseline", "a100"], notes="on the old data", settings=settings,
)
for step in range(200):
    row = {"loss": 1 / (step + 1), "eval": {"accuracy": step / 200}}
    if step == 100:
        row |= {"loss": math.nan, "table": wandb.Table(columns=["a"], data=[[1]]), "text": "x"}
    run.log(row)
run.summary["best"] = 0.995
run.finish()
"""
MLFLOW = """
import math, mlflow, sys
folder = sys.argv[1]
GPU = "system/gpu_0_memory_usage_"
for uri in (f"sqlite:///{folder}/mlflow.db", f"{folder}/mlruns"):
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("vision")
    with mlflow.start_run(run_name="first try", tags={"team": "red"}) as run:
        begin = run.info.start_time  # a millisecond a step: two of one are one reading
        mlflow.log_params({"lr": 0.1, "depth": 12, "optimizer": "adam", "amp": True})
        for step in range(20):
            values = {"loss": 1 / (step + 1), "val/accuracy": step / 20}
            mlflow.log_metrics({**values, **{GPU + "megabytes": 1000 + step, GPU + "percentage": 4}}, step, timestamp=begin + step)
        mlflow.log_metric("loss", math.nan, step=20, timestamp=begin + 20)
        mlflow.log_metric("loss", math.inf, step=21, timestamp=begin + 21)
    try:
        with mlflow.start_run(run_name="second try"):
            mlflow.log_metric("loss", 2.0, step=3)
            raise KeyError
    except KeyError:
        pass
    with mlflow.start_run(run_name="third try") as run:
        pass
    mlflow.delete_run(run.info.run_id)
"""


def needed(package: str) -> None:
    if find_spec(package) is None:
        reason = f"{package} is not installed: pip install 'memagent[trackers]'"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def write_source(code: str, folder: Path) -> None:
    quiet = {"WANDB_SILENT": "true", "WANDB_DISABLE_GIT": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
    environ = {**os.environ, **quiet}
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def wandb_file(tmp_path_factory) -> Path:
    """The file of a W&B run that has ended. W&B's process may outlive the script by a moment."""
    needed("wandb")
    folder = tmp_path_factory.mktemp("wandb")
    write_source(WANDB, folder)
    (file,) = folder.glob("wandb/offline-*/*.wandb")

    def is_ended() -> bool:
        return any(run.status for run in wandb.read_runs(file, []))

    wait_until(is_ended, "the end of a W&B run")
    return file


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory) -> Path:
    needed("mlflow")
    folder = tmp_path_factory.mktemp("mlflow")
    write_source(MLFLOW, folder)
    return folder


@pytest.fixture
def mlflow_folder(mlflow_template, tmp_path) -> Path:
    """A copy of a folder with `mlflow.db` and `mlruns`, each with the same runs."""
    return shutil.copytree(mlflow_template, tmp_path / "mlflow")


@pytest.fixture
def event_folder(tmp_path) -> Path:
    """A folder of a TensorBoard run, with hyperparameters."""
    needed("tensorboard")
    import torch
    from torch.utils.tensorboard import SummaryWriter

    folder = tmp_path / "logs" / "first"
    with SummaryWriter(str(folder)) as writer:
        for step in range(100):
            writer.add_scalar("train/loss", 1 / (step + 1), step)
            if step % 10 == 0:
                writer.add_scalars("accuracy", {"train": step / 100, "val": step / 200}, step)
        writer.add_hparams({"lr": 0.1, "model": "resnet", "amp": True}, {"hparam/best": 0.3})
        writer.add_text("note", "hello")
        writer.add_histogram("weights", torch.ones(2), 0)
    return folder


READERS = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}


@pytest.fixture
def read() -> Callable[..., tuple[list[SourceRun], list[str]]]:
    """Read a source: read(tracker, path) -> (runs, problems)."""

    def read_source(tracker: str, path: Path) -> tuple[list[SourceRun], list[str]]:
        problems: list[str] = []
        return list(READERS[tracker].read_runs(path, problems)), problems

    return read_source


def values_of(run: SourceRun, column: str) -> dict[int, float]:
    """Return a scalar's values by step."""
    return {
        step: value
        for block in run.scalars.blocks()
        for step, value in zip(block["step"], block.get(column, ()), strict=False)
        if value is not None
    }
