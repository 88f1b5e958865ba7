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
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = json.loads(file.read_text())
    assert found["quick"] and [row["objects"] > 0 for row in found["rows"]] == [True, True]
    assert all(
        row[name] > 0
        for row in found["rows"]
        for name in ("census_ms", "census_ms_per_100k", "diagnosis_ms")
    )
    assert len(shown.splitlines()) == 1 + len(found["rows"])
