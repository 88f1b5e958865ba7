"""The probability of a batch that is too large: one test for each rule of `memagent.forecast.tail`."""

from __future__ import annotations

import math
import random

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
