"""The leak benchmark's command runs and prints its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.long
def test_the_command_writes_the_printed_figures(tmp_path):
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.leaks", "--quick", "--json", str(file)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    printed = json.loads(file.read_text())
    assert printed["quick"] and [row["objects"] > 0 for row in printed["rows"]] == [True, True]
    assert all(
        row[name] > 0
        for row in printed["rows"]
        for name in ("census_ms", "census_ms_per_100k", "diagnosis_ms")
    )
    assert len(output.splitlines()) == 1 + len(printed["rows"])
