"""Tiny random models, for frameworks without network access."""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.python_fork import ForkServer

TWO_RANKS = Path(__file__).with_name("two_ranks.py")


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)


@pytest.fixture
def under_memagent(fork_server: ForkServer, tmp_path: Path) -> Callable[..., dict]:
    """Run an unchanged script under `memagent run`; returns its report, with what it printed as `stdout`."""

    def run(script: str, *options: str) -> dict:
        path, report = tmp_path / "train.py", tmp_path / "report.json"
        path.write_text(textwrap.dedent(script))
        command = ["-m", "memagent", "run", "--report", str(report), *options, str(path)]
        process = fork_server.run(*command, cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        return {**json.loads(report.read_text()), "stdout": process.stdout}

    return run


@pytest.fixture
def two_ranks(
    fork_server: ForkServer, tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run two gloo ranks: two_ranks(PATH) or two_ranks("-m", "memagent", "run", ..., PATH)."""

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        process = fork_server.run(str(TWO_RANKS), *command, cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        return process

    return run
