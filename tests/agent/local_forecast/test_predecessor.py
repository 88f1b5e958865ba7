"""A run learns how the last one of the same program ended: from its server, or from its folder."""

from __future__ import annotations

import os

import pytest

import memagent
from memagent.delivery import local_predecessor
from memagent.delivery.local_predecessor import find_local_predecessor
from memagent.forecast.predecessor import MAX_POINTS, MIN_STEPS
from memagent.local_forecast.monitor import warning_text
from memagent.wire.messages import Risk, RunStart
from tests.waiting import wait_until

STEPS = 3 * MIN_STEPS


@pytest.fixture
def play(training):
    """Play a run of so many steps; return the pipeline's forecast, which outlives it."""
    model, optimizer, step = training

    def play(run_id: str, *, steps: int = STEPS, status: str = "completed", until=None, **options):
        options = {"config": {"layers": 1}, **options}  # a worker of xdist has no script
        run = memagent.attach(model, optimizer, predict=False, run_id=run_id, **options)
        for _ in range(steps):
            step()
        if until is not None:
            wait_until(lambda: until(run._pipeline.forecast._hints))
        run.finish(status)
        return run._pipeline

    return play


def predecessor_of(pipeline):
    return pipeline.forecast._hints.predecessor.get("host")


def test_a_rerun_without_a_server_reads_the_last_file_of_its_folder(play, clean_settings):
    assert predecessor_of(play("first")) is None
    found = play("second", until=lambda hints: hints.predecessor)
    predecessor = predecessor_of(found)
    assert (predecessor.run_id, predecessor.status) == ("first", "completed")
    assert predecessor.last_step == STEPS and len(predecessor.steps) <= MAX_POINTS
    assert min(predecessor.floor_bytes) > 0
    forecaster = found.forecast.monitor._forecasts["host"].forecaster
    assert forecaster._knowledge.predecessor == predecessor


def test_a_rerun_gets_it_from_the_server_and_reports_it_as_a_hint(play, live_server, monkeypatch):
    monkeypatch.setenv("MEMAGENT_SERVER", live_server.url)
    play("first", status="failed")
    pipeline = play("second", until=lambda hints: hints.predecessor)
    predecessor = predecessor_of(pipeline)
    assert (predecessor.run_id, predecessor.status) == ("first", "failed")
    assert predecessor.last_step == STEPS and predecessor.limit_bytes > 0

    def hints():
        path = "/api/v1/runs/second/events?kind=hints"
        return [event["data"] for event in live_server.get(path).json["events"]]

    wait_until(lambda: any("predecessor" in data for data in hints()))
    assert hints()[0]["predecessor"]["host"]["run_id"] == "first"


@pytest.mark.parametrize(
    "options", [{"config": {"layers": 2}}, {"project": "other"}], ids=["config", "project"]
)
def test_another_program_is_no_predecessor(play, clean_settings, options):
    start = play("first")._start
    assert find_local_predecessor(clean_settings, start) is None, "it's the run itself"
    other = play("second", **options)._start
    assert find_local_predecessor(clean_settings, other) is None


def test_it_reads_neither_large_nor_damaged_nor_unfinished_files(play, clean_settings, monkeypatch):
    now = play("now")._start
    play("first")
    assert find_local_predecessor(clean_settings, now).run_id == "first"
    play("short", steps=3)
    (file,) = clean_settings.glob("first*.memagent")
    newest = file.stat().st_mtime + 60
    for name, content in (("torn", file.read_bytes()[:-9]), ("empty", b""), ("other", b"text")):
        copy = clean_settings / f"{name}.memagent"
        copy.write_bytes(content)
        os.utime(copy, (newest, newest))
    assert find_local_predecessor(clean_settings, now).run_id == "first"
    monkeypatch.setattr(local_predecessor, "MAX_FILE_BYTES", 10)
    assert find_local_predecessor(clean_settings, now) is None


def test_a_run_of_unknown_program_searches_nothing(tmp_path):
    assert find_local_predecessor(tmp_path, RunStart(run_id="r")) is None


def test_a_warning_quotes_it():
    risk = Risk(level="warning", cause="leak", predecessor="The last run ended well.")
    assert "  The last run ended well." in warning_text(risk, "A100").splitlines()
