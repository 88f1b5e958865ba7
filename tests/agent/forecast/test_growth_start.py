"""Start of growth: one test for each rule of `memagent.forecast.growth_start`."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from memagent.forecast import Forecaster
from memagent.forecast.growth_start import MIN_PACE_RATIO, GrowthStart
from memagent.forecast.types import Trend

MIB = 2**20
TREND = Trend(
    slope=2.0, error=0.0, rate=0.0, slow_slope=2.0, slow_rate=0.0, since_step=200.0, span_steps=100.0, rise=200.0,
    jump=2.0, jump_error=0.0, at_step=300.0, level=400.0, value=400.0,
)  # fmt: skip


def test_the_first_trend_is_the_start():
    assert GrowthStart.of(TREND, None) == GrowthStart(200.0, 200.0, 300.0)


@pytest.mark.parametrize(("until", "start"), [(200.0, 0.0), (199.0, 200.0)])
def test_1_a_window_that_begins_while_memory_grew_continues_the_growth(until, start):
    assert GrowthStart.of(TREND, GrowthStart(0.0, 0.0, until)).step == start


def test_1_growth_that_continues_is_known_until_the_newest_trend():
    assert GrowthStart.of(TREND, GrowthStart(0.0, 0.0, 250.0)).until_step == 300.0


def test_2_slower_growth_before_is_another_growth():
    least = 300 * MIN_PACE_RATIO * 200 / 100
    assert GrowthStart.of(TREND, GrowthStart(0.0, 400 - least, 300.0)).step == 0
    assert GrowthStart.of(TREND, GrowthStart(0.0, 401 - least, 300.0)).step == 200


def test_3_a_window_that_begins_earlier_moves_the_start():
    earlier = replace(TREND, since_step=100.0)
    assert GrowthStart.of(earlier, GrowthStart(150.0, 0.0, 300.0)).step == 100


def starts(held, steps: int = 1500) -> list[int]:
    """Return the reported starts while memory grows."""
    forecaster = Forecaster(2000 * MIB)
    forecasts = [
        forecaster.update(step, allocated_bytes=round(held(step) * MIB)) for step in range(steps)
    ]
    return [one.growing_since_step for one in forecasts if one.growing_since_step is not None]


def test_the_start_of_noisy_growth_never_moves_later():
    source = random.Random(4)
    told = starts(lambda step: 100 + step + 30 * source.random())
    assert len(told) > 1000 and told == sorted(told, reverse=True)


def test_a_leak_beside_slow_growth_has_its_own_start():
    told = starts(lambda step: 100 + step / 20 + max(0, step - 700), 1100)
    assert told[0] < 20 and told[-1] == pytest.approx(700, abs=40)
