"""Growth by few jumps: one test for each rule of `memagent.forecast.running_statistics`."""

from __future__ import annotations

import random
from math import inf, nan

import pytest

from memagent.forecast.running_statistics import (
    ExcessStatistics,
    RunningLeastSquares,
    StepClock,
    StepGrowth,
)

NONE = StepGrowth()


@pytest.mark.parametrize("parts", [1, 3, 50])
def test_lines_that_are_extended_equal_those_drawn_at_once(parts):
    source = random.Random(parts)
    steps = [float(step) for step in range(100)]
    values = [2**34 + 1e6 * step + source.gauss(0, 1e5) for step in steps]
    extended = RunningLeastSquares()
    for end in range(100 // parts, 101, 100 // parts):
        extended.extend(steps[:end], values[:end])
    extended.extend(steps, values)
    at_once = RunningLeastSquares(steps, values)
    for start, end in [(0, 100), (7, 60), (99, 100)]:
        assert extended.fit(start, end) == at_once.fit(start, end)
        assert extended.mean(start, end) == at_once.mean(start, end)


def test_rule_1_a_rise_that_falls_back_is_noise():
    source = random.Random(1)
    noisy = [10.0 * (place // 20) + source.gauss(0, 0.3) for place in range(100)]
    assert 9 < StepGrowth.of(noisy, 50.0).typical < 11


def test_rule_2_a_line_and_a_noisy_line_have_no_jumps():
    source = random.Random(2)
    assert StepGrowth.of([0.8 * place for place in range(100)], 79.2) == NONE
    assert StepGrowth.of([place + source.gauss(0, 2) for place in range(100)], 99.0) == NONE


def test_rule_2_equal_jumps_in_most_buckets_are_a_straight_line():
    assert StepGrowth.of([0.0, 10.0, 20.0, 30.0, 40.0, 50.0], 50.0) == NONE
    # in half of the buckets, or of various sizes, they are jumps
    assert StepGrowth.of([0.0, 10.0, 10.0, 20.0, 20.0, 30.0, 30.0], 30.0).error > 0
    assert StepGrowth.of([0.0, 10.0, 14.0, 34.0, 44.0, 50.0], 50.0).error > 0


def test_rule_3_one_or_two_jumps_count_as_random():
    two = StepGrowth.of([0.0] * 30 + [10.0] * 30 + [20.0] * 30, 20.0)
    assert two == StepGrowth(10.0, 2.0)
    assert StepGrowth.of([0.0] * 30 + [10.0] * 30, 10.0) == StepGrowth(10.0, 2 * 2**0.5)


def test_rule_3_regular_jumps_have_more_weight_than_random_ones():
    source = random.Random(3)
    at = [source.randrange(100) for _ in range(12)]
    regular = StepGrowth.of([10.0 * (place // 8) for place in range(100)], 120.0)
    at_random = StepGrowth.of(
        [10.0 * sum(one <= place for one in at) for place in range(100)], 120.0
    )
    assert regular.error == pytest.approx(2**0.5 / 12)
    assert at_random.error > 0.3


def test_rule_3_more_jumps_have_more_weight():
    source = random.Random(4)

    def error(count: int) -> float:
        at = source.sample(range(400), count)
        return StepGrowth.of(
            [10.0 * sum(one <= place for one in at) for place in range(400)], 10.0 * count
        ).error

    assert 0 < error(25) < error(6)


def test_rule_1_a_jump_is_a_tenth_of_the_largest_and_three_times_the_mean_fall():
    # changes 10, -1, 10, 3, 10, -1: above 3 x 1 are the tens only
    growth = StepGrowth.of([0.0, 10.0, 9.0, 19.0, 22.0, 32.0, 31.0], 31.0)
    assert growth.typical == 10.0
    assert growth.error == pytest.approx(2**0.5 / 3)  # equal sizes, equal gaps
    # without falls, changes above 1 are jumps: 10, 2, 10 and 10, but not 1
    growth = StepGrowth.of([0.0, 10.0, 12.0, 22.0, 23.0, 33.0], 33.0)
    assert growth.typical == pytest.approx((100 + 4 + 100 + 100) / 32)


def test_rule_2_jumps_make_up_half_of_the_rise():
    jumps = [0.0, 4.0, 4.0, 8.0, 8.0, 12.0]
    growth = StepGrowth.of(jumps, 24.0)
    assert growth == StepGrowth(4.0, pytest.approx(2**0.5 / 3), mean=4.0, gap=2.0, last=4)
    assert StepGrowth.of(jumps, 24.1) == NONE


def test_rule_2_a_typical_jump_is_three_percent_of_the_rise():
    def rising(count: int) -> StepGrowth:
        return StepGrowth.of([float(place // 2) for place in range(2 * count + 2)], float(count))

    assert rising(33).typical == 1.0
    assert rising(34) == NONE


def test_rule_3_the_error_is_twice_that_of_the_pace():
    # jumps of 4, 4 and 6 after gaps of 2 and 3: relative variances 3*68/14**2 - 1 and 2*13/5**2 - 1
    growth = StepGrowth.of([0.0, 0.0, 4.0, 4.0, 8.0, 8.0, 8.0, 14.0], 14.0)
    assert growth.typical == pytest.approx(68 / 14)
    assert growth.error == pytest.approx(2 * ((0.0408163 + 0.04 + 0.5 / 3) / 3) ** 0.5, rel=1e-4)


def test_step_growth_is_immutable():
    with pytest.raises(AttributeError):
        NONE.typical = 1.0
    assert StepGrowth(typical=0.0, error=0.0) == NONE


# The pace


def test_the_pace_is_an_average_that_new_steps_change_by_a_twentieth():
    clock = StepClock()
    assert clock.seconds(1) is None
    clock.tick(1, 10.0)
    assert clock.seconds(1) is None
    clock.tick(3, 14.0)
    assert clock.seconds(5) == 10.0
    clock.tick(4, 20.0)
    assert clock.seconds(10) == pytest.approx(10 * (0.95 * 2 + 0.05 * 6))


def test_a_clock_that_was_set_back_gives_no_pace_and_is_the_new_start():
    clock = StepClock()
    clock.tick(1, 10.0)
    clock.tick(2, 12.0)
    clock.tick(3, 5.0)
    assert clock.seconds(1) == 2.0
    clock.tick(5, 5.0)
    assert clock.seconds(1) == pytest.approx(1.9)
    clock.tick(5, 50.0)  # the same step
    assert clock.seconds(1) == pytest.approx(1.9)
    clock.tick(6, 52.0)
    assert clock.seconds(1) == pytest.approx(0.95 * 1.9 + 0.05 * 2)


@pytest.mark.parametrize("time_s", [None, nan, inf])
def test_an_invalid_time_is_ignored(time_s):
    clock = StepClock()
    clock.tick(1, 10.0)
    clock.tick(2, time_s)
    clock.tick(3, 14.0)
    assert clock.seconds(1) == 2.0


# The excess


def excess_of(pairs) -> ExcessStatistics:
    excess = ExcessStatistics()
    for size, value in pairs:
        excess.add(value, size)
    return excess


def test_the_recent_excess_rises_at_once_and_falls_by_a_fiftieth_of_the_way():
    excess = ExcessStatistics()
    assert excess.recent == 0.0
    excess.add(100.0, None)
    assert excess.recent == 100.0
    excess.add(50.0, None)
    assert excess.recent == pytest.approx(99.0)
    excess.add(99.5, None)
    assert excess.recent == 99.5


def test_thirty_inputs_show_how_the_excess_follows_them():
    line = [(float(size), 3.0 + 2.0 * size) for size in range(1, 31)]
    assert excess_of(line).at_input(100) == pytest.approx(203.0)
    assert excess_of(line).follows_input
    assert excess_of(line).at_input(None) is None
    assert excess_of(line[:29]).at_input(100) is None
    assert not excess_of(line[:29]).follows_input
    assert excess_of([(None, 5.0)] * 40 + line[:29]).at_input(100) is None


@pytest.mark.parametrize(("spread", "is_related"), [(0.45, True), (0.52, False)])
def test_an_excess_that_varies_by_itself_is_not_related_to_the_input(spread, is_related):
    # y = x + d and x - d in turn, with x from -1 to 1: the correlation is 1 / sqrt(1 + 3 d^2 ...)
    pairs = [
        (10 + place / 500, 10 + place / 500 + (spread if place % 2 else -spread) / 1.7)
        for place in range(-500, 500)
    ]
    variance = sum((place / 500) ** 2 for place in range(-500, 500)) / 1000
    correlation = (variance / (variance + (spread / 1.7) ** 2)) ** 0.5
    assert (correlation > 0.9) == is_related
    assert excess_of(pairs).follows_input == is_related


def test_a_falling_excess_is_not_related_to_the_input():
    assert excess_of([(float(size), 100.0 - size) for size in range(40)]).at_input(5) is None


@pytest.mark.parametrize(("offset", "is_related"), [(11_000.0, True), (13_000.0, False)])
def test_inputs_and_excesses_within_a_thousandth_are_constant(offset, is_related):
    # the deviation of 0..40 is 11.8, a thousandth of 11_800
    sizes = [float(size) for size in range(41)]
    assert excess_of([(offset + size, size) for size in sizes]).follows_input == is_related
    assert excess_of([(size, offset + size) for size in sizes]).follows_input == is_related


# Lines


def test_a_line_through_equal_steps_is_flat():
    assert RunningLeastSquares([2.0, 2.0, 2.0], [1.0, 5.0, 3.0]).fit(0, 3) == (0.0, 0.0)


def test_slope_and_scatter_of_four_points():
    # 0, 2, 1, 3 over 0..3: mean 1.5, slope (1.5*1.5 + 0.5*-0.5 + ...)/5 = 0.8, residual squares 1.8
    lines = RunningLeastSquares([5.0, 6.0, 7.0, 8.0], [100.0, 102.0, 101.0, 103.0])
    slope, scatter = lines.fit(0, 4)
    assert slope == pytest.approx(0.8)
    assert scatter == pytest.approx((1.8 / 4) ** 0.5)
    assert lines.fit(1, 3) == (pytest.approx(-1.0), pytest.approx(0.0))
    assert lines.mean(0, 4) == 1.5
    assert lines.mean(1, 3) == 1.5
    assert lines.mean(2, 4) == 2.0


def test_a_perfect_fit_of_large_numbers_has_no_negative_residual():
    steps = [float(step) for step in range(200)]
    lines = RunningLeastSquares(steps, [0.1 * step for step in steps])
    for end in range(2, 200):
        slope, scatter = lines.fit(0, end)
        assert slope == pytest.approx(0.1) and 0 <= scatter < 1e-5
