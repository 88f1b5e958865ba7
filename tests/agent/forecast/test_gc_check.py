"""The check before a leak pages: one test for each rule of `memagent.forecast.gc_check`."""

from __future__ import annotations

import pytest

from memagent.forecast import Forecaster, later
from memagent.forecast.gc_check import MIN_INTERVAL_STEPS, PATIENCE_S, GarbageCheck
from memagent.forecast.types import LEVELS

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


def first_heard(forecasts) -> int | None:
    return next((forecast.step for forecast in forecasts if forecast.level != "ok"), None)


def first_page(forecasts) -> int | None:
    return next((forecast.step for forecast in forecasts if forecast.level in PAGES), None)


def test_rule_1_it_is_requested_only_before_anybody_hears_of_a_leak():
    calls: list[int] = []
    forecaster = Forecaster(LIMIT, gc_probe=lambda: calls.append(1))
    first = first_heard(climb(Forecaster(LIMIT)))
    list(climb(forecaster, range(first)))
    assert not calls
    list(climb(forecaster, range(first, first + 1)))
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


def test_rule_2_free_pieces_around_garbage_are_no_fragmentation():
    def first(garbage: int) -> int | None:
        """Return the first page of pieces that grow by 40 MiB a step, around a steady floor."""
        forecaster = Forecaster(LIMIT, gc_probe=lambda: 20 * GIB - garbage)
        for step in range(450):
            forecast = forecaster.update(
                step,
                allocated_bytes=20 * GIB,
                peak_allocated_bytes=21 * GIB,
                reserved_bytes=21 * GIB + step * GIB // 25,
                inactive_split_bytes=step * GIB // 25,
            )
            if forecast.level in PAGES:
                assert forecast.cause == "fragmentation"
                return step
        return None

    assert first(0) is not None and first(12 * GIB) is None


def test_rule_3_fragmentation_keeps_its_level_while_garbage_is_collected_again():
    forecaster, levels = Forecaster(LIMIT, gc_probe=later), []
    for step in range(900):
        forecast = forecaster.update(
            step,
            time_s=step / 5,  # patience for more forecasts than the hysteresis waits for
            allocated_bytes=20 * GIB,
            peak_allocated_bytes=21 * GIB,
            reserved_bytes=21 * GIB + step * GIB // 50,
            inactive_split_bytes=step * GIB // 50,
        )
        levels.append(forecast.level)
    first = next(place for place, level in enumerate(levels) if level in PAGES)
    assert set(levels[first:]) <= set(PAGES)


def test_rule_3_the_page_waits_for_the_samples_after_the_collection():
    first, page = first_heard(climb(Forecaster(LIMIT))), first_page(climb(Forecaster(LIMIT)))
    assert first_heard(climb(Forecaster(LIMIT, gc_probe=later))) == first + PATIENCE_S
    assert first_page(climb(Forecaster(LIMIT, gc_probe=later))) == page
    collected = climb(Forecaster(LIMIT, gc_probe=later), range(1100), collected_at=first + 3)
    assert first_heard(collected) is None


def test_rule_3_it_waits_at_most_a_quarter_of_the_remaining_steps():
    first = first_heard(climb(Forecaster(LIMIT)))
    waited = first_page(climb(Forecaster(LIMIT, gc_probe=later), step_s=0.001)) - first
    assert waited == pytest.approx((1300 - first) / 4, rel=0.1)


@pytest.mark.parametrize("step_s", [0.04, 0.5])
def test_rule_3_what_is_known_to_be_a_leak_stays_one_during_a_later_collection(step_s):
    calls = []
    forecaster = Forecaster(LIMIT, gc_probe=lambda: calls.append(1))
    levels = [forecast.level for forecast in climb(forecaster, range(1300), step_s=step_s)]
    assert len(calls) >= 3 and levels[-1] == "critical"
    assert levels == sorted(levels, key=LEVELS.index)


def verdicts(check: GarbageCheck, steps, **changes) -> list[str]:
    arguments = {
        "floor": 100.0,
        "growth": 50.0,
        "span_steps": 80.0,
        "steps_left": 1000.0,
        "step_s": None,
    }
    return [check.judge(step, **{**arguments, **changes}) for step in steps]


def test_rule_2_exactly_half_of_the_growth_is_garbage():
    assert verdicts(GarbageCheck(lambda: 75), [0]) == ["garbage"]
    assert verdicts(GarbageCheck(lambda: 76), [0]) == ["leak"]


def test_rule_1_the_verdict_stays_until_the_next_collection():
    answers = iter([75, 76, 75])
    check = GarbageCheck(lambda: next(answers))
    assert verdicts(check, [0, 19], span_steps=81.0) == ["garbage"] * 2
    assert verdicts(check, [20], span_steps=81.0) == ["garbage"]  # a quarter of 81 is 20.25
    assert verdicts(check, [21], span_steps=81.0) == ["leak"]
    assert verdicts(check, [41], span_steps=8.0) == ["leak"]
    assert verdicts(check, [42], span_steps=8.0) == ["garbage"]


@pytest.mark.parametrize(
    ("changes", "waited"),
    [
        ({}, 20),  # without times
        ({"step_s": 0.5}, 10),  # 5 seconds
        ({"step_s": 5.0}, 3),  # at least three steps
        ({"steps_left": 40.0}, 10),  # a quarter of the steps left
        ({"step_s": 0.5, "steps_left": 16.0}, 4),
    ],
)
def test_rule_3_the_page_waits_for_these_steps(changes, waited):
    states = verdicts(GarbageCheck(later), range(30), span_steps=400.0, **changes)
    assert states == ["pending"] * waited + ["leak"] * (30 - waited)


def test_without_a_probe_all_growth_is_a_leak():
    assert verdicts(GarbageCheck(None), range(3)) == ["leak"] * 3
    assert later() is None
