"""The trace and the agent's readings have the bytes that torch's allocator counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


def test_trace_and_agent_agree_with_the_allocator(tmp_path):
    file = tmp_path / "agreement.json"
    command = [sys.executable, "-m", "benchmarks.estimator", "agreement", "--quick", "--json", file]
    cases = ("mlp", "bert", "llama", "resnet", "lstm")
    subprocess.run([*command, "--only", *cases], cwd=ROOT, check=True, timeout=250)
    rows = {row["case"]: row for row in json.loads(file.read_text())["rows"]}
    assert set(rows) == set(cases) and not any(row["error"] for row in rows.values())
    lstm = rows["lstm"]["counted"]
    assert rows["lstm"]["read"] == lstm
    assert rows["lstm"]["traced"]["allocated"] == pytest.approx(lstm["allocated"], rel=1e-3)
    for case in cases[:-1]:
        assert rows[case]["traced"] == rows[case]["counted"] == rows[case]["read"]
