"""Steps of a window that are traced. The numbers are those of the module's docstring."""

from __future__ import annotations

import pytest

from memagent.leaks.trace_schedule import (
    FEW_FRAMES,
    FRAMES,
    MAX_SLOW_DOWN_S,
    StepTimes,
    TraceSchedule,
)

STEPS = 80
BARE_S = 0.02


def play(schedule, traced_s, few_frames_s=None, untraced_s=0.0, steps=STEPS, slow=()):
    """Run a window; return whether each step but the last was traced.

    traced_s, few_frames_s, untraced_s: by how much a step takes longer. slow: steps that take long
    by themselves.
    """
    traced = []
    is_traced = True
    for step in range(steps - 1):
        is_few = schedule.frames == FEW_FRAMES and few_frames_s is not None
        excess_s = (few_frames_s if is_few else traced_s) if is_traced else untraced_s
        traced.append(is_traced)
        took_s = BARE_S + excess_s + 5.0 * (step in slow)
        frames = schedule.frames
        schedule.end_step(took_s, was_traced=is_traced)
        if schedule.is_too_slow:
            break
        if step == steps // 2:
            schedule.begin_half()
        is_traced = schedule.frames != frames or schedule.traces_next() or step == steps // 2
    return traced


def test_1_steps_without_a_trace_are_the_measure():
    times = StepTimes()
    for step, took_s in enumerate((0.1, 0.1, 3.0, 0.1, 0.2)):
        times.begin(step, 10.0 * step)
        assert times.end(step + 1, 10.0 * step + took_s, is_traced=False) == pytest.approx(took_s)
    times.begin(5, 50.0)
    assert times.end(6, 58.0, is_traced=True) == pytest.approx(8.0)
    assert times.median_s == pytest.approx(0.1)
    assert times.is_known


def test_1_a_step_whose_beginning_is_unknown_has_no_time():
    times = StepTimes()
    assert times.end(1, 5.0, is_traced=False) is None
    times.begin(1, 5.0)
    assert times.end(9, 6.0, is_traced=False) is None
    assert times.median_s is None
    assert not times.is_known
    for step in range(20, 100, 20):
        times.end(step, 7.0, is_traced=False)
    assert times.is_known


@pytest.mark.parametrize("bare_s", [None, BARE_S])
def test_it_traces_all_steps_that_are_hardly_slower(bare_s):
    schedule = TraceSchedule(bare_s, STEPS)
    assert all(play(schedule, 0.01))
    assert schedule.frames == FRAMES
    assert schedule.slow_down_s == pytest.approx(0.0 if bare_s is None else 0.01 * (STEPS - 1))


def test_2_it_notes_fewer_frames_if_too_few_steps_fit():
    schedule = TraceSchedule(BARE_S, STEPS)
    traced = play(schedule, 0.25, few_frames_s=0.08)
    assert schedule.frames == FEW_FRAMES
    assert traced[:2] == [True, True]
    assert 5 <= sum(traced) <= 12
    assert schedule.slow_down_s <= 1.2 * MAX_SLOW_DOWN_S


def test_3_it_traces_some_of_the_steps_of_both_halves():
    schedule = TraceSchedule(BARE_S, STEPS)
    traced = play(schedule, 0.05)
    assert schedule.frames == FRAMES
    assert 10 <= sum(traced) <= 25
    assert sum(traced[: STEPS // 2]) >= 3
    assert sum(traced[STEPS // 2 :]) >= 3
    assert schedule.slow_down_s <= 1.2 * MAX_SLOW_DOWN_S


def test_3_the_steps_between_count_too():
    """What is freed is looked up in them."""
    schedule = TraceSchedule(BARE_S, STEPS)
    traced = play(schedule, 0.1, untraced_s=0.008)
    assert sum(traced) < sum(play(TraceSchedule(BARE_S, STEPS), 0.1))
    assert schedule.slow_down_s <= 1.5 * MAX_SLOW_DOWN_S


def test_3_a_longer_limit_traces_more():
    assert all(play(TraceSchedule(BARE_S, STEPS, max_slow_down_s=60.0), 0.25))


def test_3_a_step_that_takes_long_by_itself_changes_nothing():
    schedule = TraceSchedule(BARE_S, STEPS)
    assert all(play(schedule, 0.005, slow=(10, 50)))
    assert schedule.slow_down_s < 0.5


def test_4_it_traces_nothing_if_few_frames_take_too_long():
    schedule = TraceSchedule(BARE_S, STEPS)
    assert len(play(schedule, 3.0, few_frames_s=0.9)) == 2
    assert schedule.is_too_slow
