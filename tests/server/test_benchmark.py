"""`python -m benchmarks.server`: all rows are printed, with reasons for missing ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import urllib3

from benchmarks.figures import Figure, table
from benchmarks.server import __main__ as command
from benchmarks.server.real_server import fresh_database, running_server

ROOT = Path(__file__).parents[2]
IN_PROCESS = ("in_process", "cycle", "scrape", "disk")


@pytest.mark.long
def test_it_prints_every_group_and_writes_the_same_as_json(tmp_path):
    out = tmp_path / "figures.json"
    output = subprocess.run(
        [sys.executable, "-m", "benchmarks.server", "--quick", "--json", str(out)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    content = json.loads(out.read_text())
    assert content["quick"] is True and content["machine"]["sqlite"]
    assert list(content["sections"]) == [group.TITLE for group in command.GROUPS.values()]
    for title, rows in content["sections"].items():
        assert title in output and rows
        for row in rows:
            assert row["name"] in output
            assert "failed" not in row["note"], row
            assert (row["value"] is None) == ("not installed" in row["note"]), row


def test_a_group_that_fails_is_a_row_that_says_so(monkeypatch, capsys):
    def fail(quick):
        raise OSError("no room")

    group = command.GROUPS["in_process"]
    monkeypatch.setattr(group, "measure", fail)
    assert command.main(["--only", "in_process"]) == 1
    assert "failed: OSError: no room" in capsys.readouterr().out


@pytest.mark.parametrize("name", IN_PROCESS)
def test_it_measures_what_needs_no_server(name, capsys):
    assert command.main(["--quick", "--only", name]) == 0, capsys.readouterr().out


def test_the_servers_log_is_printed_only_after_a_failure(capfd):
    with (
        pytest.raises(AssertionError),
        fresh_database() as database,
        running_server(database.url) as server,
    ):
        assert urllib3.request("GET", f"{server.url}/api/v1/runs").status == 200
        assert capfd.readouterr().err == ""
        raise AssertionError
    assert 'message="GET /api/v1/runs"' in capfd.readouterr().err


def test_a_goal_of_more_is_met_by_more():
    assert Figure("rate", "x", 120.0, goal=100.0, more_is_better=True).met is True
    assert Figure("rate", "x", 90.0, goal=100.0, more_is_better=True).met is False
    assert ">= 100" in table({"one": [Figure("rate", "x", 90.0, goal=100.0, more_is_better=True)]})
