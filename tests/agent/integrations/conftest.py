"""Tiny random models, for frameworks without network access."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.python_fork import ForkServer


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
def torchrun(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Two gloo ranks on this machine: torchrun("script", "-m", "memagent", "run", ...) or torchrun("script") alone."""

    def run(script: str, *before: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(script))
        launcher = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            *before,
            str(path),
        ]
        process = subprocess.run(
            [sys.executable, *launcher],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env=os.environ,
        )
        assert process.returncode == 0, process.stderr
        return process

    return run
