"""Hysteresis: one test for each rule of `memagent.forecast.hysteresis`."""

from __future__ import annotations

from memagent.forecast.hysteresis import CALM_UPDATES, ForecastHysteresis
from memagent.forecast.types import Forecast


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
