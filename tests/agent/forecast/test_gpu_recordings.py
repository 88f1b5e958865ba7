"""Plans of the forecaster's recordings on a GPU, and their file."""

from __future__ import annotations

import gzip
import json

import pytest

from benchmarks.forecast import gpu_record, gpu_recorded
from benchmarks.forecast.gpu_programs import GPU_PROGRAMS
from benchmarks.forecast.gpu_record import Played, UnusableError
from benchmarks.forecast.program_set import Kind

MIB = 2**20
OVERHEAD = 50 * MIB
ERROR = "CUDA out of memory. Tried to allocate 2.00 MiB."


def kind(cause=None):
    return Kind("a program", lambda run: iter(()), cause, "list")


def played(peaks, error=None, host=()):
    rows = len(peaks)
    columns = {
        "step": list(range(rows)), "time": [50 * row for row in range(rows)], "allocated": [peak // 2 for peak in peaks],
        "peak": peaks, "reserved": [2 * peak for peak in peaks], "split": [0] * rows, "retries": [0] * rows,
        "device": [2 * peak + OVERHEAD for peak in peaks], "device_row": list(range(rows)), "outside": [OVERHEAD] * rows,
        "host": list(host) or [MIB] * rows, "input": [8] * rows, "optimizer_steps": list(range(1, rows + 1)),
        "garbage": [0] * rows, "phase": ["train"] * (rows - 1) + ["eval"] if rows else [],
    }  # fmt: skip
    return Played(columns, error, {"epoch_steps": 10, "max_input": 16})


def growing(rows):
    return [100 * MIB + row * MIB for row in range(rows)]


def ended(plan, answers):
    """Answer each run of the plan, and return the trace and the limits of the runs."""
    limits, play = [], next(plan)
    for answer in answers:
        limits.append(play.limit)
        try:
            play = plan.send(answer)
        except StopIteration as done:
            return done.value, limits
    raise AssertionError("the plan has not ended")


def test_a_program_that_dies_gets_the_limit_that_it_reaches():
    peaks = growing(200)
    plan = gpu_record.plan(kind("leak"), 0, OVERHEAD, 300)
    trace, limits = ended(plan, [played(peaks), played(peaks[:180], ERROR)])
    assert limits == [None, peaks[-1] + OVERHEAD]
    assert (trace["death"], trace["error"], trace["limit"]) == (180, ERROR, limits[1])


def test_a_program_that_dies_too_early_gets_more():
    peaks = growing(200)
    plan = gpu_record.plan(kind("leak"), 0, OVERHEAD, 300)
    trace, limits = ended(plan, [played(peaks), played([], ERROR), played(peaks[:90], ERROR)])
    assert limits[2] == int(1.1 * limits[1])
    assert trace["death"] == 90


def test_a_program_that_lives_gets_more_until_it_does():
    peaks = [100 * MIB] * 60
    plan = gpu_record.plan(kind(), 0, OVERHEAD, 60)
    trace, limits = ended(plan, [played(peaks), played(peaks[:3], ERROR), played(peaks)])
    assert 1.005 * 150 * MIB <= limits[1] + 1 < limits[2]
    assert (trace["death"], trace["error"]) == (None, None)


def test_host_memory_ends_where_its_declared_limit_is_reached():
    plan = gpu_record.plan(kind("host_memory"), 0, OVERHEAD, 300)
    trace, limits = ended(plan, [played([MIB] * 200, host=growing(200))])
    assert limits == [None]
    assert trace["death"] == 199
    assert trace["host_limit"] == growing(200)[-1]


def test_too_little_growth_is_tried_with_other_seeds_and_given_up():
    plan = gpu_record.plan(kind("leak"), 0, OVERHEAD, 300)
    with pytest.raises(UnusableError, match="grows too little"):
        ended(plan, [played([100 * MIB] * 200)] * gpu_record.ATTEMPTS)


@pytest.mark.parametrize("name", ["recorded.jsonl", "recorded.jsonl.gz"])
def test_a_recorded_trace_is_read_as_it_was_written(tmp_path, name):
    peaks = growing(200)
    plan = gpu_record.plan(kind("leak"), 0, OVERHEAD, 300)
    run, _ = ended(plan, [played(peaks), played(peaks, ERROR)])
    for _ in range(2):
        gpu_record._append(tmp_path / name, run | {"shows_input": True, "tells_epochs": True})
    trace, _ = gpu_recorded.traces(tmp_path / name)
    assert trace.columns["peak_allocated_bytes"] == peaks
    assert trace.columns["reserved_bytes"] == [2 * peak for peak in peaks]
    assert trace.columns["time_s"][1] == pytest.approx(0.005 * run["stretch"])
    assert trace.columns["phase"][-2:] == ["train", "eval"]
    assert trace.columns["input_size"] == [8] * 200
    assert (trace.options["epoch_steps"], trace.grows, trace.garbage) == (10, "list", None)


@pytest.mark.parametrize("file", [gpu_recorded.FILE, gpu_recorded.REHEARSED])
def test_the_recorded_runs_died_of_torchs_error_or_lived(file):
    kinds = {kind.name: kind for kind in GPU_PROGRAMS.kinds}
    with gzip.open(file, "rt") as lines:
        runs = [json.loads(line) for line in lines]
    for run, trace in zip(runs, gpu_recorded.traces(file), strict=True):
        assert (trace.death is not None) == kinds[trace.family].is_dying
        assert trace.death in (None, len(trace.columns["step"]))
        assert max(trace.columns["peak_allocated_bytes"]) < trace.limit_bytes
        dies_on_the_gpu = trace.cause not in (None, "host_memory")
        assert ("out of memory" in (run["error"] or "")) == dies_on_the_gpu
    halves = [half for _, half in gpu_recorded.sets(GPU_PROGRAMS)]
    assert len(runs) in (sum(map(len, halves[:2])), sum(map(len, halves[2:])))
