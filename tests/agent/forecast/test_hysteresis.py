"""Hysteresis: one test for each rule of `memagent.forecast.hysteresis`."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from memagent.forecast import Forecaster
from memagent.forecast.hysteresis import (
    CALM_UPDATES,
    MAX_AGE,
    CalmGrowth,
    ForecastHysteresis,
    GrowthStart,
)
from memagent.forecast.projection import Projection
from memagent.forecast.types import Forecast, Trend

GIB = 2**30
MIB = 2**20
PROJECTION = Projection("leak", 1200.0, 1000.0, 2000.0, 1200.0, 400.0, 10.0, 0.0, 10_000)
LAST_STEP = int(1000 * MAX_AGE)


def answer(step: int, level="warning", eta: float | None = 1000.0, cause="leak") -> Forecast:
    low, high = (eta - 50, eta + 50) if eta else (None, None)
    return Forecast(step, level, 0.9, cause, eta, low, high, None, 10, 100)


def test_rule_1_a_level_rises_at_once_with_the_whole_forecast():
    steady = ForecastHysteresis()
    steady.settle(answer(1, "notice", 1000), 1.0)
    fresh = answer(2, "critical", 1010)
    assert steady.settle(fresh, 1.0) == fresh


def test_rule_2_a_level_falls_after_several_lower_forecasts():
    steady = ForecastHysteresis()
    steady.settle(answer(1), 1.0)
    levels = [
        steady.settle(answer(step, "ok", None, None), 1.0).level
        for step in range(2, 2 + CALM_UPDATES)
    ]
    assert levels == ["warning"] * (CALM_UPDATES - 1) + ["ok"]


def test_rule_2_a_flickering_level_does_not_change():
    steady = ForecastHysteresis()
    levels = {
        steady.settle(answer(step, "warning" if step % CALM_UPDATES == 1 else "notice"), 1.0).level
        for step in range(1, 100)
    }
    assert levels == {"warning"}


def test_rule_2_a_flickering_cause_does_not_change():
    steady = ForecastHysteresis()
    causes = {
        steady.settle(answer(step, cause="leak" if step % 3 else "fragmentation"), 1.0).cause
        for step in range(1, 100)
    }
    assert causes == {"leak"}


def test_rule_3_a_small_change_of_the_eta_is_not_reported():
    steady = ForecastHysteresis()
    etas = {
        steady.settle(answer(step, eta=1000 + step % 50), 2.0).eta_step for step in range(1, 200)
    }
    assert etas == {1001.0}


def test_rule_3_a_large_change_of_the_eta_is_reported_with_its_interval():
    steady = ForecastHysteresis()
    steady.settle(answer(1, eta=1000), 2.0)
    moved = steady.settle(answer(2, eta=600), 2.0)
    assert (moved.eta_low, moved.eta_step, moved.eta_high) == (550, 600, 650)


def test_rule_3_the_remaining_seconds_decrease_without_a_change_of_the_eta():
    steady = ForecastHysteresis()
    steady.settle(answer(1, eta=1000), 2.0)
    later = steady.settle(answer(101, eta=1010), 2.0)
    assert (later.step, later.eta_step, later.eta_s) == (101, 1000, 1798)
    assert steady.settle(answer(102, eta=1010), None).eta_s is None


def test_a_passed_eta_is_replaced():
    steady = ForecastHysteresis()
    steady.settle(answer(1, eta=100), 1.0)
    assert steady.settle(answer(99, eta=100.5), 1.0).eta_step == 100.5


def test_the_interval_of_an_unchanged_eta_never_lies_in_the_past():
    steady = ForecastHysteresis()
    steady.settle(answer(1, eta=100), 1.0)
    forecast = steady.settle(answer(70, eta=102), 1.0)
    assert (forecast.eta_low, forecast.eta_step, forecast.eta_high) == (70, 100, 150)


def test_a_reset_reports_the_next_forecast_unchanged():
    steady = ForecastHysteresis()
    steady.settle(answer(1), 1.0)
    steady.reset()
    assert steady.settle(answer(2, "ok", None, None), 1.0).level == "ok"


def reported_eta(
    old: tuple[float, float, float], step: int, eta: float, *, old_step: int = 0
) -> float | None:
    steady = ForecastHysteresis()
    steady.settle(Forecast(old_step, "warning", 0.9, "leak", old[1], old[0], old[2]), 1.0)
    return steady.settle(Forecast(step, "warning", 0.9, "leak", eta, eta, eta), 1.0).eta_step


@pytest.mark.parametrize(
    ("old", "step", "same", "changed"),
    [
        ((90.0, 100.0, 110.0), 50, (90.0, 110.0), (89.9, 110.1)),  # a fifth of 50 steps
        ((20.0, 100.0, 260.0), 50, (70.0, 130.0), (69.9, 130.1)),  # an eighth of 240
        ((99.0, 100.0, 101.0), 95, (98.0, 102.0), (97.9, 102.1)),  # two steps
    ],
)
def test_rule_3_a_change_is_material_beyond_a_fifth_an_eighth_of_the_interval_or_two_steps(
    old, step, same, changed
):
    assert [reported_eta(old, step, eta) for eta in same] == [100.0, 100.0]
    assert [reported_eta(old, step, eta) for eta in changed] == list(changed)


def test_rule_3_in_the_last_two_steps_each_eta_is_reported():
    assert reported_eta((99.0, 100.0, 101.0), 98, 100.5) == 100.0
    assert reported_eta((99.0, 100.0, 101.0), 99, 100.5) == 100.5


def test_rule_3_an_eta_that_comes_or_goes_is_reported():
    steady = ForecastHysteresis()
    steady.settle(answer(1, eta=None), 1.0)
    assert steady.settle(answer(2, eta=50.0), 1.0).eta_step == 50.0
    assert steady.settle(answer(3, eta=None), 1.0).eta_step is None


def test_rule_2_a_pending_fall_carries_the_reasons_of_the_old_level():
    old = Forecast(1, "warning", 0.9, "leak", 500.0, 400.0, 600.0, 99.0, 10, 100, 3.0, 7)
    new = Forecast(11, "notice", 0.2, "input", 900.0, 800.0, 990.0, 33.0, 20, 200, 5.0, 8)
    steady = ForecastHysteresis()
    steady.settle(old, 2.0)
    assert steady.settle(new, 2.0) == Forecast(
        11, "warning", 0.9, "leak", 500.0, 400.0, 600.0, 978.0, 10, 100, 3.0, 7
    )


def test_rule_3_an_unchanged_eta_comes_with_the_new_readings():
    old = Forecast(1, "warning", 0.9, "leak", 500.0, 400.0, 600.0, 99.0, 10, 100, 3.0, 7)
    new = Forecast(11, "warning", 0.8, "leak", 505.0, 405.0, 605.0, 33.0, 20, 200, 5.0, 8)
    steady = ForecastHysteresis()
    steady.settle(old, 2.0)
    assert steady.settle(new, 2.0) == Forecast(
        11, "warning", 0.8, "leak", 500.0, 400.0, 600.0, 978.0, 20, 100, 5.0, 8
    )


def test_rule_2_a_return_of_the_level_starts_the_count_again():
    steady = ForecastHysteresis()
    steady.settle(answer(1), 1.0)

    def settled(level: str, count: int) -> list[str]:
        return [steady.settle(answer(1, level), 1.0).level for _ in range(count)]

    assert settled("ok", CALM_UPDATES - 1) == ["warning"] * 7
    assert settled("warning", 1) == ["warning"]
    assert settled("ok", CALM_UPDATES) == ["warning"] * 7 + ["ok"]
    assert settled("notice", 1) == ["notice"]
    assert settled("ok", CALM_UPDATES - 1) == ["notice"] * 7
    assert settled("critical", 1) == ["critical"]
    assert settled("ok", CALM_UPDATES) == ["critical"] * 7 + ["ok"]
    settled("warning", 1)
    settled("ok", 5)
    steady.reset()
    assert steady.reported is None
    assert settled("warning", 1) + settled("ok", CALM_UPDATES) == ["warning"] * 8 + ["ok"]


def test_rule_2_a_new_cause_is_reported_after_several_forecasts():
    steady = ForecastHysteresis()
    causes = [steady.settle(answer(1), 1.0).cause] + [
        steady.settle(answer(step, cause="input"), 1.0).cause for step in range(2, 11)
    ]
    assert causes == ["leak"] * 8 + ["input"] * 2


def calm_growth():
    calm = CalmGrowth()
    calm.keep(50, PROJECTION, 0.3, 5000.0, 1)
    return calm


@pytest.mark.parametrize(
    ("steps", "bytes_more", "revision", "holds"),
    [
        (1, 0.0, 1, True),
        (LAST_STEP, LAST_STEP * 10.0, 1, True),
        (LAST_STEP + 1, 0.0, 1, False),
        (1, LAST_STEP * 10.0 + 1, 1, False),
        (1, 0.0, 2, False),
    ],
)
def test_rules_4_to_6_it_holds_for_a_share_of_what_is_left(steps, bytes_more, revision, holds):
    assert calm_growth().holds(50 + steps, 5000.0 + bytes_more, revision) == holds


def test_it_holds_nothing_that_was_dropped():
    calm = calm_growth()
    calm.drop()
    assert not calm.holds(50, 5000.0, 1)


def leak(step):
    return {"allocated_bytes": 20 * GIB + step * GIB // 64, "peak_allocated_bytes": 30 * GIB}


def test_rule_4_growth_is_projected_again_at_few_steps_and_pages_as_early(monkeypatch):
    def first_page():
        counts, projected = 0, Forecaster._nearest

        def counted(self, step):
            nonlocal counts
            counts += 1
            return projected(self, step)

        forecaster = Forecaster(80 * GIB)
        with monkeypatch.context() as patch:
            patch.setattr(Forecaster, "_nearest", counted)
            for step in range(4000):
                forecast = forecaster.update(step, **leak(step))
                if forecast.level == "warning":
                    return step, counts
        raise AssertionError(forecast)

    page, count = first_page()
    monkeypatch.setattr(CalmGrowth, "holds", lambda *_: False)
    earliest, all_of_them = first_page()
    assert earliest <= page <= 1.02 * earliest
    assert count < all_of_them / 3


def test_what_is_learnt_counts_at_the_next_step():
    forecaster = Forecaster(80 * GIB)
    for step in range(1500):
        if forecaster.update(step, **leak(step)).level == "notice":
            break
    first = step - 20
    forecaster = Forecaster(80 * GIB)
    for step in range(first):
        assert forecaster.update(step, **leak(step)).level == "ok"
    forecaster.learn(grows="list")
    assert forecaster.update(first, **leak(first)).level == "warning"


TREND = Trend(
    slope=2.0, error=0.0, rate=0.0, slow_slope=2.0, slow_rate=0.0, since_step=200.0, span_steps=100.0, rise=200.0,
    jump=2.0, jump_error=0.0, at_step=300.0, level=400.0, value=400.0,
)  # fmt: skip


def test_the_first_trend_is_the_start():
    assert GrowthStart.of(TREND, None) == GrowthStart(200.0, 200.0, 300.0)


@pytest.mark.parametrize(("until", "start"), [(200.0, 0.0), (199.0, 200.0)])
def test_rule_7_a_window_that_begins_while_memory_grew_continues_the_growth(until, start):
    assert GrowthStart.of(TREND, GrowthStart(0.0, 0.0, until)).step == start


def test_rule_7_growth_that_continues_is_known_until_the_newest_trend():
    assert GrowthStart.of(TREND, GrowthStart(0.0, 0.0, 250.0)).until_step == 300.0


def test_rule_8_a_window_that_begins_earlier_moves_the_start():
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
