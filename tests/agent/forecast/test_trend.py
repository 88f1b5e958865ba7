"""Trends: one test for each rule of `memagent.forecast.trend`."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from memagent.forecast.running_statistics import RunningLeastSquares
from memagent.forecast.trend import find_trend, growth_in, steps_until

TRIFLE = 1.0


def trend_of(function, count: int = 100, **options):
    return find_trend(
        [float(step) for step in range(count)],
        [function(step) for step in range(count)],
        TRIFLE,
        **options,
    )


def test_every_fit_agrees_with_statistics_linear_regression():
    source = random.Random(1)
    steps = [float(step * 3) for step in range(40)]
    values = [4e10 + 2e6 * step + source.gauss(0, 1e7) for step in steps]
    slope, scatter = RunningLeastSquares(steps, values).fit(7, 31)
    wanted = statistics.linear_regression(steps[7:31], values[7:31])
    assert slope == pytest.approx(wanted.slope)
    residuals = [
        y - wanted.slope * x - wanted.intercept
        for x, y in zip(steps[7:31], values[7:31], strict=True)
    ]
    assert scatter == pytest.approx(statistics.pstdev(residuals))


def test_rule_1_it_finds_a_late_onset_in_a_shorter_window():
    trend = trend_of(lambda t: 10 + max(0, t - 60))
    assert trend.slope == pytest.approx(1, rel=0.2)
    assert trend.since_step > 30


def test_rule_2_growth_within_the_scatter_is_ignored():
    source = random.Random(2)
    assert trend_of(lambda t: 0.05 * t + source.gauss(0, 3)) is None


def test_rule_2_a_single_jump_is_ignored():
    assert trend_of(lambda t: 10 if t < 50 else 30) is None


def test_rule_2_tiny_growth_is_ignored():
    assert trend_of(lambda t: 0.009 * t) is None


def test_rule_3_every_part_of_the_window_must_grow():
    assert trend_of(lambda t: max(0, 25 - t) + max(0, t - 94) * 10) is None


def test_rule_4_growth_that_has_nearly_stopped_is_ignored():
    assert trend_of(lambda t: 40 * (1 - math.exp(-t / 12))) is None


def test_rule_5_it_finds_where_a_saturating_growth_ends():
    trend = trend_of(lambda t: 100 * (1 - math.exp(-t / 100)))
    reached = 100 * (1 - math.exp(-0.99))
    assert steps_until(20, trend.slope, trend.rate) == pytest.approx(
        -100 * math.log((100 - reached - 20) / 100) - 99, rel=0.2
    )
    assert steps_until(60, trend.slope, trend.rate) == math.inf


def test_rule_5_a_straight_line_stays_straight():
    trend = trend_of(lambda t: 5.0 * t)
    assert (trend.slope, trend.rate) == (pytest.approx(5), pytest.approx(0, abs=1e-9))


def test_rule_5_half_of_an_acceleration_is_extrapolated():
    trend = trend_of(lambda t: t**1.5)
    steps = steps_until(130**1.5 - 99**1.5, trend.slope, trend.rate)
    assert steps == pytest.approx(31, rel=0.06)


def test_rule_5_a_late_onset_is_not_an_acceleration():
    trend = trend_of(lambda t: 10 + max(0, t - 45))
    assert (trend.slope, trend.rate) == (pytest.approx(1, rel=0.05), pytest.approx(0, abs=1e-3))
    assert trend.since_step == pytest.approx(45, abs=8)


def test_rule_6_only_growth_in_few_jumps_may_end():
    jumps = [0, 9, 14, 30, 41, 52, 66, 90]
    rare = trend_of(lambda t: 10.0 * sum(jump <= t for jump in jumps))
    steady = trend_of(lambda t: 0.8 * t)
    assert rare.slow_rate < rare.rate - 0.005
    assert steady.slow_rate == pytest.approx(0, abs=1e-3)
    assert (rare.jump, steady.jump) == (10, pytest.approx(0.8))


def test_rule_7_a_random_walk_is_not_growth():
    def wandering(t: int) -> float:
        return {0: 0.0, 1: 30.0, 2: 0.0, 3: 30.0}.get(t // 20, 0.0) if t < 80 else 1.5 * (t - 80)

    assert trend_of(wandering) is None
    assert trend_of(lambda t: 0.0 if t < 80 else 1.5 * (t - 80)) is not None


def test_rule_8_windows_within_one_period_are_skipped():
    assert trend_of(lambda t: float(t % 50), repeats_from=25.0) is None
    assert trend_of(lambda t: float(t % 50)) is not None


def test_rule_9_it_takes_the_longest_window():
    assert trend_of(lambda t: float(t)).span_steps == 99


@pytest.mark.parametrize("rate", [0.0, -0.01, 0.003])
def test_steps_and_growth_are_inverse(rate):
    assert growth_in(steps_until(30, 1.0, rate), 1.0, rate) == pytest.approx(30)


def test_it_has_no_steps_left_without_headroom_and_no_end_without_growth():
    assert steps_until(0, 1.0, 0.0) == 0
    assert steps_until(10, 0.0, 0.0) == math.inf
    assert steps_until(200, 1.0, -0.01) == math.inf


def test_rule_10_the_level_is_what_the_noise_reaches_at_its_highest():
    source = random.Random(3)
    readings = [[t + source.gauss(0, 1) for _ in range(8)] for t in range(100)]
    steps = [float(t) for t in range(100)]
    trend = find_trend(steps, list(map(min, readings)), TRIFLE, tops=list(map(max, readings)))
    assert 99 + 1 < trend.level < 99 + 5
    assert trend.level_at(120) == pytest.approx(trend.level + 21, abs=1)


def test_rule_10_half_a_jump_is_added_to_the_line():
    trend = trend_of(lambda t: 10.0 * (t // 10))
    assert trend.level == pytest.approx(99, abs=1)  # the last reading is 90, amid a jump of 10
