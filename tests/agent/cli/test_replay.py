"""`memagent replay` on recordings and exports of real trainings."""

from __future__ import annotations

import csv
import json

import pytest

import memagent
from memagent.cli import main

GIB = 2**30
LEAK = {
    "step": list(range(1, 601)),
    "peak_allocated_bytes": [4 * GIB + 2**25 * step for step in range(1, 601)],
}


@pytest.fixture
def leak(tmp_path):
    """A run that takes 32 MiB more with each step."""
    path = tmp_path / "leak.json"
    columns = {**LEAK, "allocated_bytes": LEAK["peak_allocated_bytes"]}
    path.write_text(json.dumps({"limit_bytes": 24 * GIB, "total_steps": 2000, "columns": columns}))
    return path


def replayed(capsys, *arguments: object) -> dict:
    assert main(["replay", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_prints_the_step_of_the_warning_of_a_leak(leak, capsys):
    result = replayed(capsys, leak)
    (device,) = result["devices"]
    assert (result["samples"], device["limit_bytes"]) == (600, 24 * GIB)
    warning = next(one for one in result["forecasts"] if one["level"] in ("warning", "critical"))
    assert warning["step"] == result["first_warning_step"] < 600
    assert warning["cause"] == "leak"
    assert warning["eta_low"] <= 640 <= warning["eta_high"]


def test_it_prints_the_text_of_the_warning(leak, capsys):
    assert main(["replay", str(leak)]) == 0
    head, *lines, end = capsys.readouterr().out.splitlines()
    assert head == "run leak, rank 0: 600 samples; limit of cuda0 24.00 GiB"
    assert any("WARNING: step" in line and "cuda0 will run out of memory" in line for line in lines)
    assert end.startswith("first warning at step ")


def test_another_limit_changes_the_forecast(leak, capsys):
    assert replayed(capsys, leak, "--limit", "1024GiB")["first_warning_step"] is None
    soon = replayed(capsys, leak, "--limit", "8GiB")["first_warning_step"]
    assert soon <= replayed(capsys, leak)["first_warning_step"]


def test_all_prints_every_forecast(leak, capsys):
    assert [one["step"] for one in replayed(capsys, leak, "--all")["forecasts"]] == LEAK["step"]


def test_it_replays_a_recording_of_the_agent(training, clean_settings, capsys):
    model, optimizer, step = training
    with memagent.attach(model, optimizer, run_id="r", total_steps=4, limit_bytes="1024GiB"):
        for _ in range(4):
            step()
    (path,) = clean_settings.glob("*.memagent")
    result = replayed(capsys, path)
    assert (result["run_id"], result["status"], result["samples"]) == ("r", "completed", 5)
    assert result["first_warning_step"] is None and result["forecasts"] == []
    assert main(["replay", str(path)]) == 0
    assert capsys.readouterr().out.endswith("no warning; the run ended as completed\n")


def test_it_replays_one_rank_of_an_export_in_its_newest_attempt(tmp_path, capsys):
    path = tmp_path / "export.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                "rank",
                "device",
                "attempt",
                "step",
                "time_s",
                "allocated_bytes",
                "limit_bytes",
                "loss",
            ]
        )
        for attempt, rank in ((1, 0), (2, 0), (2, 1)):
            writer.writerows(
                [rank, "GPU-1", attempt, step, step, GIB, (rank + 8) * GIB, ""]
                for step in (1, 2, 3)
            )
            writer.writerow([rank, "scalars", attempt, 1, 1.0, "", "", 0.5])
    assert replayed(capsys, path)["samples"] == 3
    assert replayed(capsys, path, "--rank", 1)["devices"][0]["limit_bytes"] == 9 * GIB
    assert main(["replay", str(path), "--rank", "5"]) == 2
    assert "no samples of rank 5; the file has ranks [0, 1]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("no.memagent", None, "does not exist"),
        ("x.memagent", "hello", "isn't a run file of memagent"),
        ("x.csv", "a,b\n1,2\n", "cannot be replayed (KeyError: 'device')"),
        ("x.json", "{", "cannot be replayed"),
        ("x.json", "[]", "cannot be replayed"),
        ("x.json", '{"columns": {"step": [1], "allocated_bytes": []}}', "same number of rows"),
        ("x.json", '{"columns": {"step": ["one"]}}', "may only hold numbers"),
        ("x.json", '{"columns": {"allocated_bytes": [5]}}', "as in --limit 24GiB"),
    ],
)
def test_an_invalid_recording_is_one_line_that_says_what_to_do(
    tmp_path, capsys, name, content, words
):
    if content is not None:
        (tmp_path / name).write_text(content)
    assert main(["replay", str(tmp_path / name)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
