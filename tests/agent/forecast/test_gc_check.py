"""The check before a leak pages: one test for each rule of `memagent.forecast.gc_check`."""

from __future__ import annotations

import pytest

from memagent.forecast import Forecaster, later
from memagent.forecast.gc_check import MIN_INTERVAL_STEPS, PATIENCE_S, GarbageCheck

GIB = 2**30
LIMIT = 40 * GIB
PAGES = ("warning", "critical")


def climb(
    forecaster: Forecaster,
    steps=range(1300),
    *,
    step_s: float = 1.0,
    collected_at: int | None = None,
):
    """Forecasts of a floor that climbs from 10 GiB by 20 MiB a step, and once falls all the way back."""
    for step in steps:
        since = step if collected_at is None or step < collected_at else step - collected_at
        floor = 10 * GIB + since * GIB // 50
        yield forecaster.update(
            step, time_s=step * step_s, allocated_bytes=floor, peak_allocated_bytes=floor + 4 * GIB
        )


def first_page(forecasts) -> int | None:
    return next((forecast.step for forecast in forecasts if forecast.level in PAGES), None)


def test_rule_1_it_is_requested_only_before_a_page():
    calls: list[int] = []
    forecaster = Forecaster(LIMIT, gc_probe=lambda: calls.append(1))
    page = first_page(climb(Forecaster(LIMIT)))
    list(climb(forecaster, range(page)))
    assert not calls
    list(climb(forecaster, range(page, page + 1)))
    assert len(calls) == 1


def test_rule_1_it_is_requested_rarely():
    calls: list[int] = []

    def collect() -> int:
        calls.append(1)
        return 0

    check = GarbageCheck(collect)
    for step in range(1000):
        check.judge(step, floor=100, growth=50, span_steps=400.0, steps_left=200.0, step_s=1.0)
    assert len(calls) == 10
    for step in range(1000, 1000 + 2 * int(MIN_INTERVAL_STEPS)):
        check.judge(step, floor=100, growth=50, span_steps=8.0, steps_left=200.0, step_s=1.0)
    assert len(calls) == 12


def test_rule_2_a_fall_by_half_is_garbage():
    assert first_page(climb(Forecaster(LIMIT, gc_probe=lambda: 10 * GIB))) is None
    page = first_page(climb(Forecaster(LIMIT)))
    assert first_page(climb(Forecaster(LIMIT, gc_probe=lambda: LIMIT))) == page


def test_rule_3_the_page_waits_for_the_samples_after_the_collection():
    page = first_page(climb(Forecaster(LIMIT)))
    assert first_page(climb(Forecaster(LIMIT, gc_probe=later))) == page + PATIENCE_S
    assert first_page(climb(Forecaster(LIMIT, gc_probe=later), collected_at=page + 3)) is None


def test_rule_3_it_waits_at_most_a_quarter_of_the_remaining_steps():
    page = first_page(climb(Forecaster(LIMIT)))
    waited = first_page(climb(Forecaster(LIMIT, gc_probe=later), step_s=0.001)) - page
    assert waited == pytest.approx((1300 - page) / 4, rel=0.1)
