"""`python -m benchmarks.agent`: every row is printed, with the reason for a missing figure."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from benchmarks.agent.peers import PEERS
from benchmarks.figures import Figure, from_samples, interval, table

ROOT = Path(__file__).parents[2]
ROWS = {
    "step without the agent",
    "raw reads alone",
    "hand-off alone (row to buffer)",
    "the agent's hooks, reads included",
    "the agent's hooks beyond the reads",
    "step with the agent less step without",
}
ONCE = {
    "import memagent",
    "attach, 10,000 parameters, first of a process",
    "attach, 10,000 parameters, later ones",
    "finish(), nothing to deliver",
    "finish(), a second of samples to deliver",
    "resident memory beyond torch",
}


@pytest.mark.long
def test_it_prints_every_row_and_writes_the_same_as_json(tmp_path):
    out = tmp_path / "figures.json"
    done = run_benchmark("--quick", "--json", str(out))
    assert done.returncode == 0, done.stderr
    content = json.loads(out.read_text())
    sections = {
        title: {row["name"]: row for row in rows} for title, rows in content["sections"].items()
    }
    empty, small, ten_ms, wide, peers, once = sections.values()
    assert set(empty) == set(small) == ROWS
    assert set(ten_ms) == set(wide) > ROWS and "slowdown, end to end (paired)" in ten_ms
    assert set(once) == ONCE and set(peers) == set(PEERS)
    for rows in sections.values():
        for name, row in rows.items():
            assert name in done.stdout
            assert "failed" not in row["note"]
    for name, row in peers.items():
        assert (row["value"] is None) == (installed_version(PEERS[name].package) is None)
        assert (row["value"] is None) == ("not installed" in row["note"])
    assert all(
        row["value"] > 0
        for row in small.values()
        if "less" not in row["name"] and "beyond" not in row["name"]
    )
    assert content["quick"] is True and content["machine"]["torch"]


def test_without_a_gpu_the_gpu_part_says_so(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("has a GPU")
    done = run_benchmark("--gpu", "--quick")
    assert done.returncode == 0 and "no CUDA device" in done.stdout


def test_a_goal_is_met_missed_or_not_judged():
    assert Figure("a", "us", 9.0, goal=10.0).met is True
    assert Figure("a", "us", 9.0, goal=10.0, p99=60.0, p99_goal=50.0).met is False
    assert Figure("a", "us", note="not installed", goal=10.0).met is None
    assert Figure("a", "us", 9.0).met is None


def test_the_interval_holds_the_median_and_narrows_with_more_samples():
    few, many = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0] * 50
    low, high = interval(few)
    assert low <= 2.5 <= high and low < high
    narrow = interval(many)
    assert narrow[1] - narrow[0] < high - low
    figure = from_samples("a", "us", few, scale=1e6)
    assert (figure.value, figure.low, figure.high) == (2.5e6, 1e6 * low, 1e6 * high)


def test_the_table_shows_figures_goals_and_reasons():
    text = table(
        {
            "one": [
                Figure("cost", "us", 9.12345, 8.0, 11.0, goal=10.0),
                Figure("other", "us", note="not installed"),
            ]
        }
    )
    lines = text.splitlines()
    assert lines[1] == "-- one"
    assert lines[2].split() == ["cost", "9.12", "us", "8.00", "..", "11.0", "<=", "10.0", "met"]
    assert lines[3].split() == ["other", "-", "not", "installed"]


def run_benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.agent", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
