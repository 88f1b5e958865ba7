"""Recorded verdicts of the product's finder, and the command that records them."""

from __future__ import annotations

import ast
import json
from dataclasses import replace

import pytest

from benchmarks.forecast import finder_record, finder_results, gpu_recorded
from benchmarks.forecast.baselines import feed
from benchmarks.forecast.finder_results import FinderRun, measured, table
from benchmarks.forecast.gpu_programs import GPU_PROGRAMS
from benchmarks.forecast.traces import Trace, Verdict

KINDS = {kind.name: kind for kind in GPU_PROGRAMS.kinds}
GIB = 2**30


def finder_run(*verdicts, program="a program", truth="list", death=True, **others):
    return FinderRun(
        program, truth, death, GIB, 400, verdicts, **{"notice": None, "page": None} | others
    )


def trace(family="a program", grows="list", death=100):
    held = [step * GIB for step in range(200)]
    columns = {"step": list(range(200)), "allocated_bytes": held, "peak_allocated_bytes": held}
    return Trace(family, 210 * GIB, columns, death, grows=grows)


@pytest.fixture
def results(monkeypatch):
    """Return a function that replaces the recorded runs."""
    return lambda *runs: monkeypatch.setattr(finder_results, "runs", lambda: runs)


def test_a_program_is_told_what_it_was_told_after_as_many_steps(results):
    unknown, found = Verdict(40, "unknown"), Verdict(63, "list")
    results(finder_run(unknown, found))
    assert measured(trace(), 100) == [Verdict(100, "unknown"), Verdict(123, "list")]


def test_a_later_verdict_comes_as_much_later_as_the_run_is_longer(results):
    verdicts = Verdict(40, "unknown"), Verdict(60, "cache"), Verdict(120, "list")
    results(finder_run(*verdicts))
    assert measured(trace(), 100)[1:] == [Verdict(120, "cache"), Verdict(240, "list")]


def test_other_programs_draw_from_those_that_keep_the_same_and_end_alike(results):
    alike = finder_run(Verdict(0, "unknown"), Verdict(9, "epoch"), program="another", truth="cache")
    results(
        finder_run(Verdict(0, "unknown"), Verdict(9, "list")), replace(alike, has_died=False), alike
    )
    assert measured(trace("simulated", "cache"), 0)[-1] == Verdict(9, "epoch")
    assert measured(trace("simulated", "buffer"), 0) == []


def test_the_forecaster_gets_the_rest_of_a_buffer_as_the_finder_saw_it(results):
    results(finder_run(Verdict(0, "unknown"), Verdict(20, "buffer", 1.5)))
    *_, (forecaster, _) = feed(trace(), finder=measured)
    growth = forecaster._knowledge.growth
    (found,) = {row for row in range(200) if (row + 1.5 * (199 - row)) * GIB == growth.end_bytes}
    assert growth.grows == "buffer" and found > 20


def test_the_table_counts_the_newest_verdict_and_when_the_first_came(results):
    early = finder_run(
        Verdict(40, "unknown"), Verdict(62, "list"), Verdict(99, "unknown"), notice=70
    )
    late = replace(early, notice=50)
    wrong = finder_run(Verdict(40, "unknown"), Verdict(64, "list"), truth="buffer", death=False)
    lines = table([early, late, wrong, finder_run(truth=None, death=False)]).splitlines()
    rows = {line[:18].strip(): line[18:].split() for line in lines[1:6]}
    assert rows["list, dies"] == ["2", "2", "22", "1"]
    assert rows["buffer, lives"] == ["1", "1", "24", "1"]
    assert rows["nothing, lives"] == ["1", "1", "0"]


def test_a_program_becomes_a_script_of_its_own():
    for kind in GPU_PROGRAMS.kinds[::10]:
        tree = ast.parse(finder_record.script_of(kind))
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert names == {kind.program.__name__}
        compile(tree, kind.name, "exec")


def test_each_rehearsed_run_can_be_repeated():
    orders = list(finder_record.orders(range(9)))
    assert {order.kind.name for order in orders} == set(KINDS)
    for order, run in zip(orders, gpu_recorded.lines(gpu_recorded.REHEARSED), strict=True):
        setting = order.setting
        assert (order.kind.name, order.limit) == (run["program"], run["limit"])
        assert (setting.steps, setting.expandable) == (run["steps"], run["expandable"])


def test_recorded_results_are_of_programs_and_limits_that_were_rehearsed():
    limits = {(run["program"], run["limit"]) for run in gpu_recorded.lines(gpu_recorded.REHEARSED)}
    for line in finder_results.FILE.read_text().splitlines():
        run = json.loads(line)
        assert (run["program"], run["limit"]) in limits
        assert run["truth"] == KINDS[run["program"]].grows
