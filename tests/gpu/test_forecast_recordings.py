"""Programs of the forecaster's benchmark recorded on the device, with torch's own errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.forecast import gpu_recorded

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


def test_a_leak_dies_of_torchs_error_and_a_healthy_run_lives(tmp_path):
    file = tmp_path / "recorded.jsonl.gz"
    command = [
        sys.executable, "-m", "benchmarks.forecast.gpu_programs", "record", "--out", str(file), "--jobs", "2", "--each", "1",
        "--steps", "120", "--seconds", "300", "--only", "predictions_kept_for_metrics", "--only", "images_of_one_size",
    ]  # fmt: skip
    folders = os.pathsep.join(str(ROOT / name) for name in ("agent", "server", ""))
    environment = {**os.environ, "PYTHONPATH": folders}
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert "2 recorded, 0 failed" in ended.stderr, ended.stderr
    runs = {trace.family: trace for trace in gpu_recorded.traces(file)}
    died, lived = runs["predictions kept for metrics"], runs["images of one size"]
    assert died.death == len(died.columns["step"]) >= 40
    assert died.cause == "leak"
    assert lived.death is None
    assert len(lived.columns["step"]) == 120
    for trace in runs.values():
        assert (
            0.5 * trace.limit_bytes < max(trace.columns["peak_allocated_bytes"]) < trace.limit_bytes
        )
        assert max(trace.columns["device_used_bytes"]) <= 1.05 * trace.limit_bytes
