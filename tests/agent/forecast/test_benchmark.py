"""The forecaster's benchmark: scorer, traces and command."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.forecast import first_pages, generated, record, recorded, series
from benchmarks.forecast.baselines import (
    DETECTORS,
    feed,
    least_squares,
    memagent,
    memagent_with_oracle,
    oracle,
    threshold_90,
)
from benchmarks.forecast.score import score, table
from benchmarks.forecast.traces import Alarm, Trace

GIB = 2**30
ROOT = Path(__file__).parents[3]


def ramp(death: int | None = 100) -> Trace:
    used = [step * GIB for step in range(100)]
    columns = {
        "step": list(range(100)),
        "time_s": list(range(100)),
        "allocated_bytes": used,
        "peak_allocated_bytes": used,
    }
    return Trace("ramp", 100 * GIB, columns, death, "leak" if death else None, death is not None)


def test_it_scores_a_correct_warning():
    result = score("x", lambda trace: Alarm(60, 110, 90, 120, "leak"), [ramp()])
    assert (
        result.recall,
        result.lead,
        result.eta_error,
        result.eta_covered,
        result.cause_right,
    ) == (1, 0.4, 0.25, 1, 1)
    assert result.false_alarms_per_1000 is None


def test_it_scores_a_late_warning():
    result = score("x", lambda trace: Alarm(95), [ramp()])
    assert (result.recall, result.families) == (0, {"ramp": 0})


def test_it_scores_false_alarms():
    result = score(
        "x", lambda trace: Alarm(95) if trace.family == "ramp" else None, [ramp(None)] * 3
    )
    assert (result.recall, result.false_alarms_per_1000) == (None, 1000)
    assert "1000" in table([result])


def test_the_compared_forecasters_detect_a_ramp():
    assert threshold_90(ramp()).step == 91
    assert least_squares(ramp()).eta_step == pytest.approx(100)


def test_it_requests_a_garbage_collection_at_the_current_row():
    used = [20 * GIB + step * GIB // 50 for step in range(900)]
    columns = {"step": list(range(900)), "allocated_bytes": used, "peak_allocated_bytes": used}
    garbage = Trace(
        "saw", 40 * GIB, columns, None, garbage=[bytes_used - 20 * GIB for bytes_used in used]
    )
    assert memagent(garbage) is None
    assert memagent(Trace("leak", 40 * GIB, columns, 1000)) is not None


def test_synthetic_traces_end_where_their_need_reaches_the_limit():
    results = list(generated.traces(3, seed=1))
    assert {trace.family for trace in results} == set(generated.FATAL) | set(generated.HARMLESS)
    for trace in results:
        assert max(trace.columns["peak_allocated_bytes"]) < trace.limit_bytes
        assert trace.death in (None, len(trace.columns["step"]))
        assert (trace.family in generated.FATAL) == (trace.death is not None)


def test_recorded_traces_end_where_their_memory_reached_the_limit():
    results = list(recorded.traces())
    assert {trace.death is None for trace in results} == {True, False}
    for trace in results:
        assert max(trace.columns["peak_allocated_bytes"]) < trace.limit_bytes
        assert trace.death in (None, len(trace.columns["step"]))


def test_a_recording_can_be_repeated():
    kinds = {
        json.loads(line)["kind"]: json.loads(line)["leaks"]
        for line in recorded.FILE.read_text().splitlines()
    }
    assert {name: name in record.LEAKS for name in kinds} == kinds
    assert set(kinds) <= set(record.LEAKS | record.HEALTHY)


def test_a_recording_of_a_gpu_has_the_allocators_columns(tmp_path):
    run = {
        "kind": "made up",
        "leaks": False,
        "step_s": 0.1,
        "floor": [5, 0],
        "excess": [2, 2],
        "input": [8, 16],
        "reserved": [9, 1],
        "split": [1, 0],
    }
    file = tmp_path / "recorded.jsonl"
    file.write_text(json.dumps(run))
    columns = next(recorded.traces(file)).columns
    assert columns["reserved_bytes"] == [9 * 4096, 10 * 4096]
    assert columns["inactive_split_bytes"] == [4096, 4096]
    assert columns["input_size"] == [8, 16]


def test_no_recorded_leak_is_missed():
    leaks = [trace for trace in recorded.traces() if trace.death is not None]
    assert score("memagent", memagent, leaks).recall == 1


def test_the_command_prints_a_table_and_writes_it_as_json(tmp_path):
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.forecast", "--quick", "--json", str(file)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    content = json.loads(file.read_text())
    assert [one["name"] for one in content["sets"]["recorded"]] == list(DETECTORS)
    assert all(name in printed for name in DETECTORS)
    assert [title for title in content["sets"] if "times the limit" in title] == [
        "harmless, held out, 1.4 times the limit",
        "harmless, held out, 2.0 times the limit",
    ]


def test_only_selected_sets_are_made_and_scored():
    command = [sys.executable, "-m", "benchmarks.forecast", "--quick", "--only", "rehearsed, tuned"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    titles = [line for line in printed.splitlines() if line.startswith("==")]
    assert len(titles) == 1 and titles[0].startswith("== rehearsed, tuned on: ")


def test_with_room_both_limits_are_larger():
    trace = replace(ramp(None), options={"host_limit_bytes": 10, "total_steps": 100})
    roomy = trace.with_room(1.4)
    assert (roomy.limit_bytes, roomy.options) == (
        140 * GIB,
        {"host_limit_bytes": 14, "total_steps": 100},
    )
    assert ramp(None).with_room(2).options == {}


def test_the_finder_is_asked_before_a_notice():
    found = []
    for forecaster, forecast in feed(replace(ramp(), grows="list"), finder=oracle):
        if forecaster._knowledge.growth.grows == "list" and not found:
            found.append(forecast.level)
    assert found == ["ok"]
    assert memagent_with_oracle(replace(ramp(), grows="list")).step < memagent(ramp()).step


def test_real_series_become_survivors_and_leaking_runs(tmp_path):
    with gzip.open(tmp_path / "series.csv.gz", "wt", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["run_id", "source", "gpu", "t_s", "used_bytes", "limit_bytes", "label"])
        for run, label in (("full", "finished"), ("dead", "oom"), ("unknown", "failed")):
            limit = {"full": 8 * GIB, "dead": 8 * GIB, "unknown": ""}[run]
            rows.writerows(
                [run, "someone/else", 0, 15 * row, 8 * GIB, limit, label] for row in range(60)
            )
    limits, tight, leaking = (traces for _, traces in series.sets(tmp_path, seed=7))
    assert [(trace.limit_bytes, trace.death) for trace in limits] == [(8 * GIB, None)]
    assert [trace.limit_bytes for trace in tight] == [int(8.16 * GIB)] * 2
    # a device that is full already gets a larger limit
    assert [trace.limit_bytes for trace in leaking] == [int(8 * GIB * 1.15), int(8 * GIB * 1.3)]
    for trace in leaking:
        used = trace.columns["device_used_bytes"]
        assert len(used) == trace.death < 60 and used[0] == 8 * GIB
        assert used[-1] < trace.limit_bytes <= 2 * used[-1] - used[-2] + 1
        assert memagent(trace).cause == "leak"
    assert memagent(tight[0]) is None


def test_a_wrong_page_is_one_of_a_run_that_lives_and_a_late_one_of_a_run_that_dies():
    harmless, dying = first_pages.outcome(ramp(None)), first_pages.outcome(ramp(100))
    assert (harmless.is_wrong, harmless.told) == (True, "critical")
    assert (harmless.page.cause, harmless.page.known, harmless.page.rises) == ("leak", "leak", 1)
    assert harmless.page.ahead == pytest.approx(1, abs=0.1)
    assert (dying.is_dying, dying.is_wrong) == (True, False)
    calm = replace(ramp(), columns={"step": [1, 2], "allocated_bytes": [GIB, GIB]}, death=3)
    assert (first_pages.outcome(calm).is_wrong, first_pages.outcome(calm).page) == (True, None)
    lines = first_pages.table([harmless, dying, first_pages.outcome(calm)]).splitlines()
    assert lines[0] == "paged: 1 of 1 runs" and lines[2] == "missed: 1 of 2 runs"
    assert "1/1" in lines[1] and "1 leak/leak" in lines[1] and "1/2  1 ok" in lines[3]
