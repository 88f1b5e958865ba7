"""Trends: one test for each rule of `memagent.forecast.trend`."""

from __future__ import annotations

import math
import random
import statistics
from itertools import pairwise

import pytest
from msgspec.structs import replace

from memagent.forecast.running_statistics import RunningLeastSquares, growth_in, steps_until
from memagent.forecast.trend import MAX_TRUSTED_JUMP_ERROR, find_trend
from memagent.forecast.types import Trend

TRIFLE = 1.0
FIELDS = tuple({*Trend.__struct_fields__} - {"expires_step", "renewed_above", "pauses_after"})


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


def test_rule_4_growth_stops_with_a_pause_of_a_tenth_of_its_history():
    def line_until(end: int, count: int) -> Trend | None:
        return trend_of(lambda step: 10.0 * min(step, end), count)

    # of the 300 steps up to 270, a tenth is 30; the pause begins after step 270
    assert line_until(270, 294) is not None
    assert line_until(270, 302) is None
    assert line_until(90, 112) is not None  # 24 steps at least
    assert line_until(90, 116) is None


def test_rule_4_a_trend_says_when_it_will_have_stopped():
    trend = trend_of(lambda step: 10.0 * min(step, 270), 280)
    assert trend.expires_step == pytest.approx(270 + 28, abs=4)
    assert 2700 < trend.renewed_above < 2740
    # twice a bucket's width earlier, since it's noticed as much later
    wide = find_trend(
        [4.0 * place for place in range(95)], [40.0 * min(place, 90) for place in range(95)], TRIFLE
    )
    assert wide is not None
    assert wide.expires_step == pytest.approx(360 + 37.6 - 7, abs=8)


def test_rule_4_growth_that_paused_before_may_pause_half_again_as_long():
    def reports(pause: int) -> Trend | None:
        return trend_of(lambda step: 10.0 * (min(step, 199) // 40), 200 + pause)

    assert reports(20) is not None
    assert reports(35) is None


def test_rule_4_steps_before_growth_began_are_no_pause_of_it():
    """A process that loads for 30 steps, 60 steps after the run's start, is done 30 steps later."""

    def loaded(after: int) -> Trend | None:
        return trend_of(lambda step: 10.0 * min(30, max(0, step - 60)), 90 + after)

    assert loaded(8) is not None and loaded(28) is None


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


def test_rule_7_growth_above_all_that_came_before_is_growth():
    def loading(t: int) -> float:
        return {0: 0.0, 1: 60.0, 2: 0.0, 3: 60.0, 4: 0.0}.get(t // 4, 60.0 + max(0.0, t - 30))

    assert trend_of(loading, 100).slope == pytest.approx(1, rel=0.1)
    # while its newer half is below what the series fell from, it may wander
    assert trend_of(lambda t: loading(t) if t < 20 else max(0.0, t - 30), 100) is None


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


# The windows


def since(onset: int, **options) -> float | None:
    """Return the first step of the window that finds a line from `onset` on, after a high level."""
    trend = trend_of(lambda t: 1000.0 if t < onset else float(t), **options)
    return trend and trend.since_step


@pytest.mark.parametrize(
    ("onset", "window"),
    [(0, 0), (1, 34), (34, 34), (35, 56), (56, 56), (57, 71), (71, 71), (72, 81), (81, 81), (82, None)],
)  # fmt: skip
def test_rule_1_each_window_is_two_thirds_of_the_one_before(onset, window):
    # 100, 66, 44, 29 and 19 buckets; 13 are too few
    assert since(onset) == window


def test_rule_1_eight_buckets_are_needed():
    assert trend_of(float, 7) is None
    assert trend_of(float, 8).span_steps == 7


def test_rule_1_only_the_whole_of_a_short_series_counts():
    # ten of fifteen buckets grow, and a window of ten would show it
    assert trend_of(lambda step: max(5.0, step), 15) is None
    assert trend_of(lambda step: max(5.0, step), 27).since_step > 0


def test_rule_2_a_short_series_has_to_rise_more_clearly():
    def rising(step: float) -> float:
        return step + 0.8 * (-1) ** int(step)

    # with a standard deviation of 0.8, eight rise less than 12 times as far, and sixteen further
    assert trend_of(rising, 8) is None
    assert trend_of(rising, 16) is not None


def test_rule_8_a_window_may_begin_with_the_repetition():
    assert since(1, repeats_from=34.0) == 34
    assert since(1, repeats_from=33.9) is None


@pytest.mark.parametrize("onset", [0, 32])
def test_a_straight_line_is_measured_exactly(onset):
    # 96 and 64 buckets, of which eight blocks are equal
    steps = [float(3 * place + 7) for place in range(96)]
    values = [1e3 if place < onset else 2.0 * step for place, step in enumerate(steps)]
    trend = find_trend(steps, values, TRIFLE)
    span = 3.0 * (95 - onset)
    exact = Trend(
        slope=2.0, error=0.0, rate=0.0, slow_slope=2.0, slow_rate=0.0, since_step=3 * onset + 7, span_steps=span,
        rise=2 * span, jump=6.0, jump_error=0.0, at_step=292.0, level=584.0, value=584.0,
        lag=0.0,
    )  # fmt: skip
    for name in FIELDS:
        assert getattr(trend, name) == pytest.approx(getattr(exact, name), abs=1e-6), name
    assert trend.level_at(302.0) == pytest.approx(604.0)


# Shapes of 66 buckets, the second window of a hundred: none of their results depends on what was
# before, on units or on an offset


def noisy(seed: int, size: float):
    source = random.Random(seed)
    return [place + source.gauss(0, size) for place in range(66)]


JUMP_PLACES = (0, 4, 13, 21, 30, 37, 49, 58)
LATE_JUMPS = (5, 25, 38, 46, 52, 57, 61, 64)
SHAPES = {
    "noise": noisy(1, 1.5),
    "heavy noise": noisy(2, 6.0),
    "saturating": [100 * (1 - math.exp(-place / 60)) for place in range(66)],
    "accelerating": [place**1.6 for place in range(66)],
    "onset": [max(0.0, place - 25.0) + (place % 2) / 10 for place in range(66)],
    "regular jumps": [10.0 * (place // 6) for place in range(66)],
    "few jumps": [10.0 * sum(jump <= place for jump in JUMP_PLACES) for place in range(66)],
    "ever more jumps": [10.0 * sum(jump <= place for jump in LATE_JUMPS) for place in range(66)],
    "teeth": [2.0 * (place // 5 * 5) + 3 * (place % 5) for place in range(66)],
}


def trend_of_shape(name: str, *, before=(), scale=1.0, offset=0.0, step=1.0, first=0.0) -> Trend:
    values = [scale * value + offset for value in (*before, *SHAPES[name])]
    steps = [first + step * place for place in range(len(values))]
    tops = [value + scale * (place % 3) for place, value in enumerate(values)]
    trend = find_trend(steps, values, TRIFLE * scale, tops=tops)
    assert trend is not None
    return trend


def assert_equal(trend: Trend, other: Trend) -> None:
    for name in FIELDS:
        expected = getattr(other, name)
        assert getattr(trend, name) == pytest.approx(expected, rel=1e-5, abs=1e-8), name


@pytest.mark.parametrize("name", SHAPES)
def test_a_trend_does_not_depend_on_what_was_before_its_window(name):
    alone = trend_of_shape(name, first=34.0)
    # 33 is a multiple of the tops' period, so the window's 34th bucket has the top of the first
    after = trend_of_shape(name, before=[2e3] * 33 + [1.9e3])
    values = [*SHAPES[name]]
    steps = [34.0 + place for place in range(66)]
    tops = [value + (place + 34) % 3 for place, value in enumerate(values)]
    assert_equal(after, find_trend(steps, values, TRIFLE, tops=tops))
    assert alone.since_step == after.since_step


@pytest.mark.parametrize("name", SHAPES)
def test_a_trend_is_the_same_in_other_units(name):
    base = trend_of_shape(name)
    other = trend_of_shape(name, scale=1000.0, offset=5e5, step=4.0, first=80.0)
    assert_equal(
        other,
        replace(
            base,
            slope=base.slope * 250,
            error=base.error * 250,
            rate=base.rate / 4,
            slow_slope=base.slow_slope * 250,
            slow_rate=base.slow_rate / 4,
            since_step=80 + 4 * base.since_step,
            span_steps=4 * base.span_steps,
            rise=1000 * base.rise,
            jump=1000 * base.jump,
            at_step=80 + 4 * base.at_step,
            level=5e5 + 1000 * base.level,
            value=5e5 + 1000 * base.value,
            lag=1000 * base.lag,
            period=4 * base.period,
            mean_jump=1000 * base.mean_jump,
            # half a bucket before its end on average, but exactly where buckets hold one step
            last_jump_step=79.5 + 4 * (base.last_jump_step - 1) if base.period else 0.0,
        ),
    )


# The fit


def test_rule_2_the_least_rise_is_included():
    assert find_trend([*range(100)], [*range(100)], 99.0) is not None
    assert find_trend([*range(100)], [*range(100)], 99.01) is None


@pytest.mark.parametrize(("noise", "is_growth"), [(13.9, True), (14.4, False)])
def test_rule_2_the_rise_is_seven_times_the_scatter(noise, is_growth):
    # of ninety-nine, 14.1
    trend = trend_of(lambda t: t + noise * (-1) ** t)
    assert (trend is not None) == is_growth


def test_the_error_of_the_slope_is_that_of_least_squares_twice():
    # +-0.4 in turn: eight blocks of twelve buckets grow evenly, so the halves' ratio has no error
    trend = trend_of(lambda t: t + 0.4 * (-1) ** t, 96)
    assert trend.error == pytest.approx(2 * 0.4 * math.sqrt(12 / 96) / 95, rel=0.01)
    assert trend.rise == pytest.approx(95, rel=0.01)
    assert trend.jump == pytest.approx(1.8)
    assert trend.level == pytest.approx(95.4, abs=0.02)


@pytest.mark.parametrize(("dip", "window"), [(9.0, 0), (10.1, 56)])
def test_rule_3_a_quarter_may_lie_a_tenth_of_the_rise_below_the_one_before(dip, window):
    assert trend_of(lambda t: 25 - dip if t == 60 else float(t)).since_step == window


def test_rule_3_one_quarter_may_lie_below_the_one_before_but_not_two():
    assert trend_of(lambda t: {60: 24.0, 80: 24.5}.get(t, float(t))).since_step == 0
    # what grows after the second is above all before
    assert trend_of(lambda t: {60: 24.0, 80: 23.5}.get(t, float(t))).since_step > 80
    assert trend_of(lambda t: {60: 24.0, 80: 24.0}.get(t, float(t))).since_step > 80


@pytest.mark.parametrize(("ratio", "window"), [(0.401, 0), (0.399, 34)])
def test_rule_4_the_newer_slope_is_four_tenths_of_the_older(ratio, window):
    assert trend_of(lambda t: min(t, 50) + ratio * max(0, t - 50)).since_step == window


@pytest.mark.parametrize("curve", [-0.004, -0.002, 0.0, 0.003, 0.01])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rule_5_and_6_the_bend_by_the_statistics_module(curve, seed):
    source = random.Random(seed)
    steps = [2.0 * place for place in range(64)]
    values = [5 * (place + curve * place**2) + source.gauss(0, 1) for place in range(64)]
    trend = find_trend(steps, values, TRIFLE)
    assert (trend.since_step, trend.span_steps, trend.jump_error) == (0.0, 126.0, 0.0)
    # 1. the ratio of the slopes of both halves, and its error by the growth of eight blocks
    line = statistics.linear_regression(steps, values)
    older = statistics.linear_regression(steps[:33], values[:33]).slope
    newer = statistics.linear_regression(steps[32:], values[32:]).slope
    blocks = [statistics.mean(values[at : at + 8]) for at in range(0, 64, 8)]
    growth = [after - before for before, after in pairwise(blocks)]
    bend = statistics.linear_regression(range(7), growth)
    rest = [y - bend.intercept - bend.slope * x for x, y in enumerate(growth)]
    error = min(
        1, math.sqrt(sum(one**2 for one in rest) / 5) / statistics.mean(growth) * math.sqrt(2 / 3.5)
    )
    # 2. pulled towards 1 by half of its error
    ratio = min(max(newer / older, 0.25), 2.0)
    q = max(1.0, ratio - error / 2) if ratio > 1 else min(1.0, ratio + error / 2)
    slow = max(0.25, min(1.0, q, ratio - error))
    # 3. the slope now: the newer half's, half a half later
    mean_slope = 2 * line.slope
    assert trend.slope == pytest.approx(mean_slope * q / (1 + q) * (q**0.5 if q < 1 else q**0.25))
    assert trend.slow_slope == pytest.approx(mean_slope * slow / (1 + slow) * slow**0.5)
    assert trend.rate == pytest.approx(math.log(q) / 63 * (0.5 if q > 1 else 1.0))
    assert trend.slow_rate == pytest.approx(math.log(slow) / 63)
    scatter = statistics.pstdev(y - line.slope * x for x, y in zip(steps, values, strict=True))
    assert trend.error == pytest.approx(
        2 * scatter * math.sqrt(12 / 64) / 126 + error * line.slope / 2
    )
    assert trend.rise == pytest.approx(line.slope * 126)
    # 4. the level: the newer half's line, and the most that a value lies above it
    center, height = statistics.mean(steps[32:]), statistics.mean(values[32:])
    above = max(
        y - height - newer * (x - center) for x, y in zip(steps[32:], values[32:], strict=True)
    )
    assert trend.level == pytest.approx(height + mean_slope * q / (1 + q) * (126 - center) + above)


@pytest.mark.parametrize("tau", [60.0, 100.0, 200.0])
def test_rule_5_saturation_has_its_own_rate(tau):
    trend = trend_of(lambda t: 1e4 * (1 - math.exp(-t / tau)), 66)
    assert trend.rate == pytest.approx(-1 / tau, rel=0.1)
    assert trend.slope == pytest.approx(1e4 / tau * math.exp(-65 / tau), rel=0.04)
    assert trend.slow_rate <= trend.rate
    assert trend.slow_rate == pytest.approx(trend.rate, rel=0.4)


def test_rule_5_an_acceleration_counts_at_most_double_and_half_of_it():
    trend = trend_of(lambda t: t**1.7)
    assert trend.rate <= math.log(2) * 2 / 99 / 2
    assert trend.rate == pytest.approx(math.log(2) / 99, rel=0.15)
    assert trend.slow_rate == 0.0


def test_rule_5_an_onset_is_where_the_newer_line_begins():
    # after a high level, the window has 66 buckets; strides of five reach the onset at 59
    trend = trend_of(lambda t: 500.0 if t < 34 else max(0.0, t - 58.0))
    assert (trend.since_step, trend.span_steps) == (59, 40)
    assert (trend.slope, trend.rate) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-9))
    assert trend.level == pytest.approx(41.0)


@pytest.mark.parametrize(("slope", "is_onset"), [(0.13, True), (0.17, False)])
def test_rule_5_an_onset_follows_a_slope_of_fifteen_percent_at_most(slope, is_onset):
    trend = trend_of(lambda t: slope * t + max(0.0, t - 48.0) * (1 - slope))
    assert (trend.since_step > 40) == is_onset


def test_rule_5_few_accelerating_jumps_are_no_acceleration():
    jumps = [0, 30, 50, 65, 77, 86, 92, 97]
    trend = trend_of(lambda t: 10.0 * sum(jump <= t for jump in jumps))
    assert trend.jump_error > 0.3
    assert (trend.since_step, trend.rate) == (0, 0.0)


@pytest.mark.parametrize(("height", "is_growth"), [(32.4, True), (32.6, False)])
def test_rule_7_a_fall_is_half_of_the_rise(height, is_growth):
    # the second window rises by 65 from step 34 on; before, there are a fall from 200 and another one
    def wandering(t: int) -> float:
        return float(t - 34) if t >= 34 else 200.0 if t == 0 else height if 10 < t < 20 else 0.0

    assert (trend_of(wandering) is not None) == is_growth


def test_rule_7_one_fall_is_counted_once():
    # down in steps, without a rise between them
    assert trend_of(lambda t: float(t - 34) if t >= 34 else 400.0 - 40 * (t // 4)).since_step == 34


def test_rule_10_noise_that_falls_back_adds_its_maximum():
    spikes = trend_of(lambda t: t + (8.0 if t % 10 == 5 else 0.0))
    assert 99 + 7 < spikes.level < 99 + 8.5
    assert trend_of(lambda t: t + (8.0 if t == 15 else 0.0)).level == pytest.approx(99, abs=1)


def test_rule_10_jumps_that_fall_back_add_their_maximum():
    # stairs, and in each bucket a peak of 8 that is gone at its end: 4.5 + 8 above the line
    stairs = [10.0 * (t // 10) for t in range(100)]
    trend = find_trend([*range(100)], stairs, TRIFLE, tops=[value + 8 for value in stairs])
    assert trend.level == pytest.approx(94.5 + 12.5, abs=1)


def test_rule_10_the_level_is_not_below_the_newest_maximum_of_a_jump():
    jumped = trend_of(lambda t: 10.0 * ((t + 9) // 10))
    assert jumped.level >= 100.0
    assert jumped.level == pytest.approx(103.5 + 5, abs=0.5)


# Steps and growth


def test_steps_and_growth_by_hand():
    assert steps_until(30.0, 2.0, 0.0) == 15.0
    assert steps_until(30.0, 1.0, 0.003) == pytest.approx(math.log(1.09) / 0.003)
    assert steps_until(30.0, 1.0, -0.01) == pytest.approx(math.log(0.7) / -0.01)
    assert steps_until(30.0, 1.0, 1e-9) == pytest.approx(30.0)
    assert steps_until(30.0, 2.0, 1e-12) == 15.0
    assert steps_until(0.5, 1.0, 0.0) == 0.5
    assert steps_until(-5.0, 1.0, 0.0) == 0.0
    assert steps_until(10.0, -1.0, 0.0) == math.inf
    assert steps_until(10.0, 0.5, 0.0) == 20.0
    assert steps_until(100.0, 1.0, -0.01) == math.inf
    assert steps_until(99.99, 1.0, -0.01) == pytest.approx(math.log(1e-4) / -0.01)
    assert growth_in(10.0, 2.0, 0.01) == pytest.approx(2 * (math.exp(0.1) - 1) / 0.01)
    assert growth_in(10.0, 2.0, 0.0) == growth_in(10.0, 2.0, 1e-14) == 20.0
    assert growth_in(10.0, 2.0, -0.5) == pytest.approx(2 * (math.exp(-5) - 1) / -0.5)
    assert growth_in(1e6, 1.0, 0.5) == pytest.approx(math.exp(50) / 0.5)
    assert growth_in(90.0, 1.0, 0.5) == pytest.approx(math.exp(45) / 0.5)


def test_the_expected_level_bends():
    trend = replace(trend_of(lambda t: float(t)), rate=-0.01)
    assert trend.level_at(99.0) == pytest.approx(trend.level)
    assert trend.level_at(149.0) - trend.level == pytest.approx((1 - math.exp(-0.5)) / 0.01)


def test_a_trend_is_immutable():
    with pytest.raises(AttributeError):
        trend_of(lambda t: float(t)).slope = 2.0


def test_rule_11_eight_readings_of_a_device_show_growth():
    def late(step: float) -> float:
        return max(0.0, step - 51)

    assert trend_of(late, 60) is None
    assert trend_of(late, 60, is_device=True).slope == pytest.approx(1.0)


def test_rule_11_peaks_among_readings_of_a_device_do_not_hide_growth():
    def with_peaks(step: float) -> float:
        return step + (400.0 if step % 9 == 4 else 0.0)

    assert trend_of(with_peaks, 60) is None
    trend = trend_of(with_peaks, 60, is_device=True)
    assert trend.slope == pytest.approx(1.0, rel=0.1)
    assert trend.level_at(60) > 400  # the next peak comes on top of the growth


def test_rule_11_straight_growth_counts_before_jumps():
    def after_jumps(step: float) -> float:
        return 10.0 * sum(step >= at for at in (3, 9, 14, 19)) + 2 * max(0.0, step - 21)

    assert trend_of(after_jumps, 34).jump_error > 0
    assert trend_of(after_jumps, 34, is_device=True).slope == pytest.approx(2.0, rel=0.1)


def test_rule_9_straight_growth_after_irregular_jumps_counts_alone():
    def jumping(step: float) -> float:
        return 100.0 * sum(step >= at for at in (20, 23, 50, 60))

    def then_straight(step: float) -> float:
        return jumping(step) + 5 * max(0.0, step - 62)

    assert trend_of(jumping, 66).jump_error > MAX_TRUSTED_JUMP_ERROR
    trend = trend_of(then_straight, 82)
    assert trend.slope == pytest.approx(5.0) and trend.since_step > 60


def test_rule_10_a_paused_growth_is_expected_no_further_above_its_value_than_ever():
    straight = trend_of(lambda step: 2.0 * step)
    assert straight.lag == pytest.approx(0, abs=1e-6)
    assert straight.level_above(198.0, 150) == 198.0
    steps = trend_of(lambda step: 10.0 * (step // 12))
    # halfway to the next jump, then long after it should have come
    assert steps.level_above(80.0, 102) == pytest.approx(steps.level_at(102))
    assert steps.level_above(80.0, 400) == 80.0 + steps.lag < steps.level_at(400)
    assert 5 <= steps.lag <= 15


def test_rule_4_growth_pauses_after_its_longest_pause_and_half_of_it():
    steps = [float(step) for step in range(96)]
    trend = find_trend(steps, [10.0 * (step // 12) for step in range(96)], TRIFLE)
    assert trend.pauses_after == 84 + 1.5 * 12 < trend.expires_step
    straight = find_trend(steps, [2.0 * step for step in range(96)], TRIFLE)
    assert straight.pauses_after <= 95 + 3


def test_5_without_its_bend_growth_continues_as_the_newer_half_runs():
    """Of 1 - exp(-t / 100), the newer half's mean slope is that of its middle."""
    trend = trend_of(lambda step: 1e4 * (1 - math.exp(-step / 100)), 200)
    assert trend is not None and trend.rate < 0
    straight = trend.without_bend()
    middle = 199 - trend.span_steps / 2
    newer = (math.exp(-middle / 100) - math.exp(-1.99)) * 1e4 / (199 - middle)
    assert straight.slope == pytest.approx(newer, rel=0.05) and straight.rate == 0
    assert straight.without_bend() == straight


def test_5_growth_that_accelerates_has_no_bend_to_leave_out():
    trend = trend_of(lambda step: 1e3 * math.exp(step / 100), 200)
    assert trend is not None and trend.rate > 0 and trend.without_bend() == trend
