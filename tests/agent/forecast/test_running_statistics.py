"""Growth by few jumps: one test for each rule of `memagent.forecast.running_statistics`."""

from __future__ import annotations

import random

from memagent.forecast.running_statistics import StepGrowth

NONE = StepGrowth()


def test_rule_1_a_rise_that_falls_back_is_noise():
    source = random.Random(1)
    noisy = [10.0 * (place // 20) + source.gauss(0, 0.3) for place in range(100)]
    assert 9 < StepGrowth.of(noisy, 50.0).typical < 11


def test_rule_2_a_line_and_a_noisy_line_have_no_jumps():
    source = random.Random(2)
    assert StepGrowth.of([0.8 * place for place in range(100)], 79.2) == NONE
    assert StepGrowth.of([place + source.gauss(0, 2) for place in range(100)], 99.0) == NONE


def test_rule_2_two_jumps_are_no_pattern():
    assert StepGrowth.of([0.0] * 30 + [10.0] * 30 + [20.0] * 30, 20.0) == NONE


def test_rule_3_regular_jumps_have_more_weight_than_random_ones():
    source = random.Random(3)
    at = [source.randrange(100) for _ in range(12)]
    regular = StepGrowth.of([10.0 * (place // 8) for place in range(100)], 120.0)
    at_random = StepGrowth.of(
        [10.0 * sum(one <= place for one in at) for place in range(100)], 120.0
    )
    assert regular.error < 0.05 < 0.3 < at_random.error


def test_rule_3_more_jumps_have_more_weight():
    source = random.Random(4)

    def error(count: int) -> float:
        at = source.sample(range(400), count)
        return StepGrowth.of(
            [10.0 * sum(one <= place for one in at) for place in range(400)], 10.0 * count
        ).error

    assert 0 < error(25) < error(6)
