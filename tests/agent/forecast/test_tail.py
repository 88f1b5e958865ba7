"""The probability of a batch that is too large: one test for each rule of `memagent.forecast.tail`."""

from __future__ import annotations

import math
import random
from statistics import NormalDist, mean, stdev

import pytest

from memagent.forecast.tail import BASE_PROBABILITY, PROBABILITY_WEIGHT, TailRisk


def tail_of(values) -> TailRisk:
    tail = TailRisk()
    for value in values:
        tail.add(value)
    return tail


def lognormal(count: int, spread: float = 0.4, seed: int = 1) -> list[float]:
    source = random.Random(seed)
    return [source.lognormvariate(0, spread) for _ in range(count)]


def test_rule_1_and_2_the_probability_is_that_of_the_distribution():
    tail = tail_of(lognormal(20_000))
    room = math.exp(0.4 * 3.0902)  # one in a thousand is larger
    probability = (tail.probability(room, 1000) - BASE_PROBABILITY) / PROBABILITY_WEIGHT
    assert probability == pytest.approx(1 - 0.999**1000, abs=0.05)


def test_rule_2_few_values_widen_the_estimate():
    room = math.exp(0.4 * 4)
    assert tail_of(lognormal(100)).probability(room, 500) > 1.5 * tail_of(
        lognormal(20_000)
    ).probability(room, 500)


@pytest.mark.parametrize(
    "values", [[5.0] * 100, [1 + step / 100 for step in range(100)], lognormal(3), []]
)
def test_rule_2_without_a_tail_the_probability_is_zero(values):
    assert tail_of(values).probability(max(values, default=1.0) * 1.2, 1000) == 0


def test_rule_3_truncated_sizes_have_no_tail():
    cut = [min(value, 1.8) for value in lognormal(2000)]
    assert tail_of(cut).probability(1.9, 10_000) == 0


def test_rule_4_it_grows_with_the_steps_and_is_never_certain():
    tail = tail_of(lognormal(500))
    chances = [tail.probability(4.0, steps) for steps in (0, 10, 100, 1000, 10**9)]
    assert chances == sorted(chances)
    assert chances[0] == 0
    assert (
        tail.probability(0, 10) == pytest.approx(chances[-1])
        and chances[-1] < BASE_PROBABILITY + PROBABILITY_WEIGHT
    )


def test_sizes_of_zero_are_ignored():
    values = lognormal(200)
    with_nothing = [value for pair in zip(values, [0.0] * 200, strict=True) for value in pair]
    assert tail_of(with_nothing).probability(3.0, 50) == tail_of(values).probability(3.0, 50)


def test_rule_4_few_values_move_the_probability_towards_one_half():
    few, many = tail_of(lognormal(16)), tail_of(lognormal(5000))
    assert 0.4 < few.probability(2.0, 2000) < 0.75 < many.probability(2.0, 2000)
    assert few.probability(500.0, 2000) < 0.02


E = math.e


def test_rule_2_and_4_few_values_give_the_undecided_probability():
    # the logarithms 0, 1, 0, 1 have the mean 1/2 and the deviation sqrt(1/3); 0.5 above the mean is
    # less than 0.6 * sqrt(2 ln 4) deviations, so nothing shows a tail yet
    tail = tail_of([1.0, E, 1.0, E])
    assert tail.probability(E, 1000) == 0.3
    level = (3 - 0.5) * math.sqrt(3)
    level /= math.sqrt(1 + (3 + level**2 / 2) / 4)
    single = 1 - NormalDist().cdf(level)
    assert tail.probability(E**3, 1) == pytest.approx(0.3 * 10 * single)
    assert tail.probability(E**3, 3) == pytest.approx(0.3 * min(1, 10 * (1 - (1 - single) ** 3)))


def test_rule_4_the_probability_of_a_tail_by_hand():
    # one value far above 15 others: 16 values, mean 4/16, and a weight of 16 / (16 + 100)
    logarithms = [0.0] * 15 + [4.0]
    tail = tail_of([math.exp(value) for value in logarithms])
    level = (3 - mean(logarithms)) / stdev(logarithms)
    level /= math.sqrt(1 + (3 + level**2 / 2) / 16)
    raw = 1 - NormalDist().cdf(level) ** 50
    assert 0.1 < raw < 0.9
    expected = 0.5 + 0.42 * raw * 16 / 116
    assert tail.probability(E**3, 50) == pytest.approx(expected)
    assert tail.probability(0.0, 50) == pytest.approx(0.5 + 0.42 * 16 / 116)
    assert tail.probability(-1.0, 50) == tail.probability(0.0, 50)
    # of an unlikely size, ten times the probability counts
    level = (30 - mean(logarithms)) / stdev(logarithms)
    level /= math.sqrt(1 + (3 + level**2 / 2) / 16)
    raw = 1 - NormalDist().cdf(level)
    assert tail.probability(E**30, 1) == pytest.approx((0.5 + 0.42 * raw * 16 / 116) * 10 * raw)


def test_rule_4_a_room_below_all_values_is_nearly_certain():
    assert tail_of([1.0] * 15 + [E**4]).probability(1e-300, 1) == pytest.approx(
        0.5 + (0.42 * 0.999) * 16 / 116
    )


def test_rule_2_four_values_are_needed():
    assert tail_of([1.0, 1.0, E**2]).probability(E, 10) == 0
    assert tail_of([1.0, 1.0, 1.0, E**2]).probability(E, 10) > 0


@pytest.mark.parametrize(("spread", "has_tail"), [(0.119, False), (0.121, True)])
def test_rule_2_sizes_vary_by_twelve_percent(spread, has_tail):
    # 30 values, half of them at either side, have this deviation; the largest lies far outside
    logarithms = [0.0] * 29 + [1.0]
    scale = spread / stdev(logarithms)
    tail = tail_of([math.exp(value * scale) for value in logarithms])
    probability = tail.probability(1.0, 10)
    assert probability > 0 if has_tail else probability == 0


def test_rule_2_a_largest_value_within_the_expected_one_is_no_tail_after_thirty():
    # half at 0, half at 1 (too often equal for a tie of three): 1 deviation, and 0.6 sqrt(2 ln n) = 1.56
    def halves(count: int) -> list[float]:
        return [math.exp(1 - 0.02 * (place // 2) if place % 2 else 0.0) for place in range(count)]

    assert tail_of(halves(30)).probability(E, 100) == 0
    assert tail_of(halves(29)).probability(E, 100) == 0.3


def test_rule_3_four_ties_are_a_maximum():
    sizes = [1.0] * 12
    assert tail_of([*sizes, *[10.0] * 3]).probability(20.0, 100) > 0
    assert tail_of([*sizes, *[10.0] * 4]).probability(20.0, 100) == 0


@pytest.mark.parametrize(
    ("size", "is_tie"), [(9.89, False), (9.91, True), (10.09, True), (10.11, False)]
)
def test_rule_3_ties_lie_within_a_hundredth(size, is_tie):
    tail = tail_of([1.0] * 12 + [10.0] * 3 + [size])
    assert (tail.probability(20.0, 100) == 0) == is_tie


def test_rule_3_a_larger_value_is_a_new_maximum():
    assert tail_of([1.0] * 12 + [10.0] * 4 + [30.0]).probability(60.0, 100) > 0
    assert tail_of([1.0] * 12 + [10.0] * 4 + [30.0] * 3).probability(60.0, 100) > 0
    assert tail_of([1.0] * 12 + [10.0] * 4 + [30.0] * 4).probability(60.0, 100) == 0


def test_without_a_step_to_come_the_probability_is_zero():
    tail = tail_of(lognormal(200))
    assert tail.probability(2.0, 0.99) == 0 < tail.probability(2.0, 1)
