"""Calibration of intervals and probabilities, held on programs that it wasn't fitted to."""

from __future__ import annotations

import math

import pytest

from benchmarks.forecast import calibrate, gpu_recorded
from benchmarks.forecast.baselines import memagent
from benchmarks.forecast.gpu_programs import GPU_PROGRAMS
from benchmarks.forecast.traces import Alarm, Trace
from memagent.forecast import Forecaster
from memagent.forecast.calibration import (
    CORPUS,
    INTERVAL_SCALE,
    SHARE_THAT_DIES,
    calibrated_interval,
)
from memagent.forecast.projection import project
from memagent.forecast.trend import find_trend

GIB = 2**30


def test_figures_are_those_of_the_runs_and_programs_at_hand():
    assert calibrate.digest() == CORPUS, "run `python -m benchmarks.forecast.calibrate`"


def held_out(name: str) -> list:
    halves = dict(gpu_recorded.sets(GPU_PROGRAMS))
    return halves[f"{name}, {calibrate.HELD_OUT}"]


def test_intervals_hold_for_programs_that_they_were_not_fitted_to():
    runs = [run for run in held_out("recorded on a GPU") if run.trending]
    alarms = [(run, alarm) for run in runs if (alarm := memagent(run)) and alarm.step < run.death]
    held = [alarm.eta_low <= run.death <= alarm.eta_high for run, alarm in alarms if alarm.eta_low]
    assert len(held) >= 20 and 0.8 <= sum(held) / len(held) <= 0.97


def test_growth_that_nothing_clears_dies_more_often_in_held_out_programs_too():
    runs = held_out("recorded on a GPU") + held_out("rehearsed")
    shares = {kind: calibrate.share_that_dies(runs, kind) for kind in SHARE_THAT_DIES}
    assert max(shares, key=lambda kind: shares[kind] or 0) == "list"


def test_bounds_move_apart_around_the_expected_steps_unless_there_were_few_runs():
    trend = find_trend(range(40), [float(step) for step in range(40)], 1.0)
    leak, inputs = (project({cause: trend}, 100.0, 1000) for cause in ("leak", "input"))
    earliest, latest = calibrated_interval(leak)
    assert 0 < earliest < leak.steps_left_low < leak.steps_left < leak.steps_left_high < latest
    assert calibrated_interval(inputs) == (inputs.steps_left_low, inputs.steps_left_high)
    now = project({"leak": trend}, 0.0, 1000)
    assert calibrated_interval(now) == (now.steps_left_low, now.steps_left_high)


@pytest.mark.parametrize("kind", ["buffer", "cache", "epoch"])
def test_a_leak_is_less_likely_to_end_the_run_if_what_grows_ends_by_itself(kind):
    told = {}
    for grows in ("list", kind):
        forecaster = Forecaster(16 * GIB)
        forecaster.learn(grows=grows)
        for step in range(400):
            forecast = forecaster.update(step, allocated_bytes=GIB + step * 2**25)
        told[grows] = forecast.oom_probability
    assert told[kind] < 0.5 < told["list"]


def test_scales_are_those_of_the_uncalibrated_interval_without_pages_that_say_now():
    run = Trace("leak", GIB, {}, death=200, cause="leak", trending=True)
    low, high = INTERVAL_SCALE
    late = Alarm(100, 150, 100 + 50 * 0.5**low, 100 + 50 * 1.5**high, "leak")
    now = Alarm(100, 100, 100, 100.5, "leak")
    expected = (1.0, pytest.approx(math.log(2) / math.log(1.5)))
    assert calibrate.scales([(run, late), (run, now)]) == expected


def test_a_quantile_leaves_a_twentieth_of_the_weight_above_it():
    values = [(float(number), 1.0) for number in range(1, 21)]
    assert calibrate.quantile(values) == 19.0
    assert calibrate.quantile([(0.2, 1.0)]) == 1.0
