"""`memagent runs` on real run files and on a real server."""

from __future__ import annotations

import json
import time

import pytest

import memagent
from memagent.cli import main
from memagent.cli.runs import table


@pytest.fixture
def two_runs(training):
    """One that completed after three steps, one that failed after one."""
    model, optimizer, step = training
    with memagent.attach(
        model, optimizer, run_id="first", name="\033[31mred", project="a", total_steps=3
    ):
        for _ in range(3):
            step()
    with pytest.raises(KeyError), memagent.attach(model, optimizer, run_id="second", project="b"):
        step()
        raise KeyError


def listed(capsys, *arguments: str) -> list[dict]:
    assert main(["runs", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)["runs"]


def test_runs_in_files_are_listed_newest_first(two_runs, capsys):
    second, first = listed(capsys)
    assert (second["id"], second["status"], second["step"]) == ("second", "failed", 1)
    assert (first["id"], first["status"], first["step"], first["total_steps"]) == (
        "first",
        "completed",
        3,
        3,
    )
    assert first["limit_bytes"] > first["peak_bytes"] > 2**20
    assert [one["id"] for one in listed(capsys, "--status", "failed")] == ["second"]
    assert [one["id"] for one in listed(capsys, "--project", "a")] == ["first"]
    assert [one["id"] for one in listed(capsys, "--limit", "1")] == ["second"]


def test_any_column_filters_orders_and_is_shown(two_runs, capsys):
    assert [one["id"] for one in listed(capsys, "--where", "step > 1")] == ["first"]
    assert [one["id"] for one in listed(capsys, "--order=-step")] == ["first", "second"]
    columns = listed(capsys, "--columns", "world_size, project")[0]["columns"]
    assert columns == {"world_size": 1, "project": "b"}
    assert main(["runs", "--columns", "total_steps,tags"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[-2:] == ["total_steps", "tags"]
    assert [row.split()[-2:] for row in rows] == [["–", "[]"], ["3", "[]"]]
    assert main(["runs", "--order", "steps"]) == 2
    assert "the nearest is 'step'" in capsys.readouterr().err


def test_a_file_that_is_being_written_is_a_running_run(training, capsys):
    model, optimizer, step = training
    with memagent.attach(model, optimizer, run_id="busy"):
        step()
        for _ in range(400):
            if result := listed(capsys):
                break
            time.sleep(0.05)
        assert [one["status"] for one in result] == ["running"]


def test_the_table_is_plain_text_without_control_sequences(two_runs, capsys):
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ID") and len(lines) == 3
    assert "3 of 3" in lines[2] and lines[2].split()[:2] == ["first", "?[31mred"]
    assert "\033" not in "".join(lines)


def test_the_table_fits_the_terminal():
    name = "a name that is rather long for a narrow terminal"
    row = ("k3v9leak", name, "oom", "12", "1.00 / 2.00 GiB", "ok", "8 s ago")
    lines = table([row], 80)
    assert (
        max(map(len, lines)) <= 80 and "…" in lines[1] and lines[1].startswith("k3v9leak  a name")
    )
    assert name in table([row], None)[1]
    assert lines[0].index("STATUS") == lines[1].index("oom")
    assert "\033[31moom" in table([row], 200, in_color=True)[1]


@pytest.mark.parametrize(
    ("columns", "missing"),
    [(120, ""), (92, "STARTED"), (80, "STARTED STEP"), (60, "STARTED STEP FORECAST")],
)
def test_a_narrow_terminal_leaves_columns_out(columns, missing):
    size, ago = "66.58 / 79.00 GiB", "4 h 58 min ago"
    row = (
        "k3v9leak",
        "vit-h lr=0.001",
        "running",
        "4,836 of 20,000",
        size,
        "warning at 6,019",
        ago,
    )
    lines = table([row], columns)
    assert max(map(len, lines)) <= columns
    assert [name for name in missing.split() if name in lines[0]] == []
    assert ("STARTED" in lines[0]) == (columns == 120)
    assert "k3v9leak  vit-h" in lines[1] and "running" in lines[1] and size in lines[1]


def test_it_reports_that_no_runs_are_recorded(capsys):
    assert main(["runs"]) == 0
    assert "no matching runs in" in capsys.readouterr().err
    assert main(["runs", "--limit", "0"]) == 2


def test_the_servers_runs_are_listed(live_server, training, capsys):
    model, optimizer, step = training
    with memagent.attach(model, optimizer, run_id="told", server=live_server.url):
        step()
    (result,) = listed(capsys, "--server", live_server.url)
    assert (result["id"], result["status"], result["step"]) == ("told", "completed", 1)
    assert main(["runs", "--server", live_server.url]) == 0
    assert "told" in capsys.readouterr().out
    assert listed(capsys, "--server", live_server.url, "--status", "oom") == []


def test_runs_are_grouped_with_the_mean_of_columns(live_server, capsys):
    for run_id, lr in (("a", 1), ("b", 1), ("c", 2)):
        body = {"run_id": run_id, "config": {"lr": lr, "batch": lr * 8 + (run_id == "b")}}
        live_server.post("/api/v1/runs", body)
    place = ("--server", live_server.url)
    assert main(["runs", "--by", "config.lr,status", "--columns", "config.batch", *place]) == 0
    header, *rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    assert [cell.strip() for cell in header if cell] == [
        "GROUP", "RUNS", "STATUS", "PEAK", "config.batch",
    ]  # fmt: skip
    assert rows[0][0] == "config.lr 1" and rows[0][-1].strip() == "8.5 (8 to 9)"
    assert "2" in [cell.strip() for cell in rows[0]] and "2 running" in " ".join(rows[0])
    assert rows[1][:2] == ["", "status running"] and len(rows) == 4
    assert main(["runs", "--by", "config.lr", "--json", *place]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [(group["key"], group["runs"]) for group in groups] == [
        ({"config.lr": 1}, 2), ({"config.lr": 2}, 1),
    ]  # fmt: skip


def test_groups_of_files_are_refused_in_one_line(two_runs, capsys):
    assert main(["runs", "--by", "project"]) in (1, 2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "server" in error


def test_an_agent_and_a_verb_find_the_token_of_their_own_server(
    start_server, training, capsys, monkeypatch
):
    server = start_server("--role", "web", environ={"MEMAGENT_OPEN": "0"})
    monkeypatch.setenv("XDG_DATA_HOME", str(server.data))
    model, optimizer, step = training
    with memagent.attach(model, optimizer, run_id="found", server=server.url):
        step()
    (result,) = listed(capsys, "--server", server.url)
    assert (result["id"], result["status"], result["step"]) == ("found", "completed", 1)
    assert main(["runs", "--server", server.url, "--token", "mag_wrong"]) == 1
    monkeypatch.setenv("XDG_DATA_HOME", str(server.data / "another user"))
    assert main(["runs", "--server", server.url]) == 1
    assert capsys.readouterr().err.count("A token is required") == 2


def test_an_unreachable_server_is_one_line(capsys):
    assert main(["runs", "--server", "http://127.0.0.1:1"]) == 1
    assert "cannot be reached" in capsys.readouterr().err
