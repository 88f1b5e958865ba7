"""Slow growth, which no forecast reports because the limit is far."""

from __future__ import annotations

import random

import pytest

from memagent.leaks import finder_import
from memagent.leaks.finder_import import FinderImport
from memagent.leaks.suspect import Diagnosis, build_suspect
from memagent.leaks.triggers import (
    BLOCK_STEPS,
    CHECK_RATIO,
    DEVICE_METHODS,
    EARLY_STEPS,
    FIRST_CHECK_STEPS,
    HOST_METHODS,
    LONG_BLOCK_STEPS,
    MIDDLE_WINDOW_STEPS,
    NOTE_STEPS,
    RISING_BLOCKS,
    CheckSchedule,
    EarlyGrowth,
    MethodSequence,
    SlowGrowthDetector,
    censuses_first,
    early_growth_detectors,
)

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize("kind, slope", [("cuda", 512), ("host", 64 * 2**10)])
def test_a_slow_steady_rise_is_reported_after_some_blocks(kind, slope):
    creep = SlowGrowthDetector(kind)
    reports = [
        creep.observe([100 * MIB + step * slope]) for step in range(3 * BLOCK_STEPS * RISING_BLOCKS)
    ]
    assert reports.index(True) == BLOCK_STEPS * (RISING_BLOCKS + 1) - 1 and sum(reports) == 2


def test_growth_at_every_fiftieth_step_is_reported_by_long_blocks():
    readings = [100 * MIB + step // 50 * 4 * MIB for step in range(8 * LONG_BLOCK_STEPS)]
    assert not SlowGrowthDetector("cuda").observe(readings)
    assert SlowGrowthDetector("cuda", LONG_BLOCK_STEPS).observe(readings)


@pytest.mark.parametrize("seed", range(5))
def test_temporary_growth_is_not_reported(seed):
    noise = random.Random(seed)
    assert not SlowGrowthDetector("cuda").observe(
        100 * MIB + noise.randrange(64 * MIB) // 512 * 512 for _ in range(2000)
    )


def test_a_sawtooth_and_a_finished_staircase_are_not_reported():
    assert not SlowGrowthDetector("cuda").observe(step % 40 * MIB for step in range(2000))
    assert not SlowGrowthDetector("cuda").observe(
        min(step // BLOCK_STEPS, 3) * MIB for step in range(2000)
    )


def test_missing_slow_readings_are_ignored():
    assert SlowGrowthDetector("cuda").observe(
        None if step % 2 else step * 512 for step in range(4 * BLOCK_STEPS * RISING_BLOCKS)
    )


def test_early_growth_is_reported_after_three_short_blocks():
    [(detector, window), (rare, rare_window)] = early_growth_detectors("host")
    readings = [reading * 32 * 2**10 for reading in range(32)]
    assert [detector.observe([reading]) for reading in readings].index(True) == 7
    assert window is None and rare.observe(readings) and rare_window == MIDDLE_WINDOW_STEPS


def test_early_growth_at_every_sixteenth_step_is_reported_by_longer_blocks():
    [(detector, _), (rare, _)] = early_growth_detectors("host")
    readings = [reading // 4 * MIB for reading in range(32)]
    assert not detector.observe(readings) and rare.observe(readings)


def test_a_diagnosis_of_early_growth_waits_until_the_finder_is_imported(monkeypatch):
    growth, imports = EarlyGrowth("host"), FinderImport(iter(range(1_000)).__next__)
    monkeypatch.setattr(finder_import, "FinderImport", lambda: imports)
    due = [
        step
        for step in range(1, 200)
        if growth.after_step(step, lambda step=step: step * 64 * KIB) is not None
    ]
    # one module each step, since each takes a second by this clock
    assert due[0] == 32 - 1 + len(finder_import.PARTS)


def test_early_growth_is_over_unless_a_diagnosis_of_it_waits(monkeypatch):
    growth = EarlyGrowth("host")
    assert not growth.is_over(EARLY_STEPS) and growth.is_over(EARLY_STEPS + 1)
    imports = FinderImport(iter(range(1_000)).__next__)
    monkeypatch.setattr(finder_import, "FinderImport", lambda: imports)
    for step in range(EARLY_STEPS - 32, EARLY_STEPS + 1):
        growth.after_step(step, lambda step=step: step * 64 * KIB)
    assert not growth.is_over(EARLY_STEPS + 1)


def test_a_longer_census_comes_before_a_trace_where_tensors_grow():
    first, trace, longer, longer_trace, rare = HOST_METHODS
    assert trace.traces_host and not longer.traces_host
    assert censuses_first(HOST_METHODS, 1) == (first, longer, trace, longer_trace, rare)
    assert censuses_first(HOST_METHODS, 2) == HOST_METHODS


def result(*rates, growth=900 * KIB, **fields):
    suspects = tuple(
        build_suspect("train.py", 7, None, "rows: list of 9", "list", rate, 0.9) for rate in rates
    )
    return Diagnosis(0, 20, suspects, 0.1, growth_bytes_per_step=growth, **fields)


def test_4_a_result_without_suspects_is_followed_by_all_methods():
    sequence = MethodSequence("host")
    methods = [sequence.current]
    while sequence.go_on(result()):
        methods.append(sequence.current)
    assert tuple(methods) == HOST_METHODS
    assert sequence.is_over


def test_4_methods_that_count_tensors_come_first_if_those_grow():
    sequence = MethodSequence("host")
    assert sequence.go_on(result(are_tensors=True))
    assert not sequence.current.traces_host


def test_5_suspects_that_explain_next_to_nothing_are_followed_by_one_trace():
    sequence = MethodSequence("host")
    assert sequence.go_on(result(KIB, are_tensors=True))
    assert sequence.current.traces_host
    assert not sequence.go_on(result(KIB))


@pytest.mark.parametrize(
    ("rates", "growth"),
    [((100 * KIB,), 900 * KIB), ((KIB, None), 900 * KIB), ((10,), 8 * KIB), ((KIB,), None)],
    ids=["a tenth", "unknown rate", "little growth", "unknown growth"],
)
def test_5_other_suspects_end_the_search(rates, growth):
    assert not MethodSequence("host").go_on(result(*rates, growth=growth))


def test_5_a_device_has_no_trace():
    sequence = MethodSequence("cuda")
    assert not sequence.go_on(result(KIB))
    assert sequence.current == DEVICE_METHODS[0]


def test_6_a_diagnosis_that_was_cut_short_says_nothing():
    sequence = MethodSequence("host")
    assert not sequence.go_on(result(is_cut_short=True))
    assert sequence.current == HOST_METHODS[0]


def test_each_check_is_further_from_the_one_before():
    schedule = CheckSchedule()
    schedule.begin(100, has_suspects=True)
    first = 100 + FIRST_CHECK_STEPS
    assert not schedule.is_check_due(first - 1) and schedule.is_check_due(first)
    schedule.note_check(first, is_soon=False)
    second = first + int(CHECK_RATIO * FIRST_CHECK_STEPS)
    assert not schedule.is_check_due(second - 1) and schedule.is_check_due(second)


def test_a_check_that_is_to_be_confirmed_is_followed_by_one_soon():
    schedule = CheckSchedule()
    schedule.begin(0, has_suspects=True)
    for _ in range(5):
        schedule.note_check(1_000, is_soon=True)
    assert schedule.is_check_due(1_000 + FIRST_CHECK_STEPS)


def test_tensors_are_counted_between_two_checks():
    schedule = CheckSchedule()
    schedule.begin(0, has_suspects=True)
    assert schedule.is_count_due(NOTE_STEPS) and not schedule.is_count_due(NOTE_STEPS - 1)
    schedule.note_count(NOTE_STEPS)
    assert not schedule.is_count_due(NOTE_STEPS + 1)
    assert not schedule.is_count_due(FIRST_CHECK_STEPS)


def test_without_suspects_nothing_is_due():
    schedule = CheckSchedule()
    schedule.begin(0, has_suspects=False)
    assert not schedule.is_check_due(10**6) and not schedule.is_count_due(50)
    schedule.begin(0, has_suspects=True)
    schedule.end()
    assert not schedule.is_check_due(10**6)
