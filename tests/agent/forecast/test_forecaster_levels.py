"""The forecaster's decisions at their boundaries, by projections and readings made by hand.

The limit is 1000 bytes, far below the growth that counts, so no trend interferes.
"""

from __future__ import annotations

import random
from math import inf

import pytest
from msgspec.structs import replace

from memagent.forecast import Forecast, Forecaster
from memagent.forecast.calibration import DEATHS, death_probability
from memagent.forecast.levels import (
    NOTICE_PROBABILITY,
    PAGE_COST,
    Situation,
    evidence_of,
    is_worth_diagnosis,
    level_of,
    reach_of,
    worthwhile,
)
from memagent.forecast.projection import Projection
from memagent.forecast.sudden_peaks import EVAL_PROBABILITY

LIMIT = 1000
FAR = Projection(
    cause="leak", steps_left=580.0, steps_left_low=500.0, steps_left_high=700.0, undamped_steps_left=580.0,
    span_steps=1000.0, slope=1.0, since_step=0.0, limit_bytes=LIMIT,
)  # fmt: skip


def level(
    steps_left: float,
    *,
    step: int = 100,
    before: str = "ok",
    step_s: float | None = None,
    observed: int = 0,
    options: dict | None = None,
    grows: str | None = None,
    **changes,
) -> str:
    """Return the level of a projection whose trend has lasted a thousand steps."""
    forecaster = Forecaster(LIMIT, **options or {})
    for number in (step - 1, step):
        forecaster.update(
            number,
            time_s=None if step_s is None else number * step_s,
            allocated_bytes=observed // 2,
            peak_allocated_bytes=observed,
        )
    forecaster.learn(grows=grows)
    forecaster._forecast = Forecast(step, before)
    near = replace(FAR, **{"steps_left": steps_left, "undamped_steps_left": steps_left, **changes})
    situation = forecaster._situation(step, near)
    return level_of(near, situation, reach_of(near, situation))


def levels(*steps_left: float, **changes) -> list[str]:
    return [level(one, **changes) for one in steps_left]


# Rule 3: how far ahead


def test_rule_3_it_pages_as_far_ahead_as_it_lasted_and_gives_notice_a_third_further():
    assert levels(1000, 1001, 1300, 1301) == ["warning", "notice", "notice", "ok"]
    assert levels(200, 201, may_die_out=True) == ["warning", "notice"]


def test_rule_7_while_paging_it_pages_twice_as_far_ahead():
    assert levels(2000, 2001, before="warning") == ["warning", "ok"]
    assert levels(2000, 2001, before="critical") == ["warning", "ok"]
    assert levels(1000, 1001, before="notice") == ["warning", "notice"]


def test_rule_3_nothing_is_reported_beyond_the_planned_end():
    plan = {"total_steps": 500}

    def earliest(*steps_left: float, **changes) -> list[str]:
        return [level(600, steps_left_low=low, options=plan, **changes) for low in steps_left]

    assert earliest(400, 401) == ["warning", "ok"]
    assert earliest(440, 441, before="warning") == ["warning", "ok"]
    assert earliest(0, 1, step=500) == ["warning", "ok"]
    assert earliest(0, 1, step=600) == ["warning", "ok"]


@pytest.mark.parametrize("plan", [910, 950, 1000, 2000, 10_000])
def test_a_plan_that_the_growth_does_not_live_to_see_makes_no_page_later(plan):
    first = next(one.step for one in climb(899) if one.level == "warning")
    planned = next(one.step for one in climb(899, total_steps=plan) if one.level == "warning")
    assert planned == first


def test_the_last_twenty_steps_are_critical_without_times():
    assert levels(20, 21) == ["critical", "warning"]
    assert levels(24, 25, before="critical") == ["critical", "warning"]
    assert levels(20, 21, before="warning") == ["critical", "warning"]


def test_the_last_two_minutes_are_critical_with_times():
    assert levels(60, 61, step_s=2.0) == ["critical", "warning"]
    assert levels(72, 73, step_s=2.0, before="critical") == ["critical", "warning"]
    assert levels(2, 1.9, step_s=62.0) == ["warning", "critical"]


# Costs


def test_2_a_page_is_worth_it_if_the_risk_exceeds_its_cost_and_else_a_notice():
    assert worthwhile("warning", 0.51, 0.5) == "warning"
    assert worthwhile("critical", 0.51, 0.5) == "critical"
    assert worthwhile("critical", 0.5, 0.5) == "notice"
    assert worthwhile("warning", NOTICE_PROBABILITY, 0.5) == "ok"
    assert worthwhile("notice", 0.41, 0.99) == "notice"
    assert worthwhile("notice", NOTICE_PROBABILITY, 0.01) == "ok"
    assert worthwhile("ok", 0.99, 0.01) == "ok"


def test_2_by_default_all_growth_that_pages_is_worth_it():
    silent = ("planned", "epoch_end", "lived", "buffer")
    pages = [death_probability(kind, 1.0) for kind in DEATHS if kind not in silent]
    assert min(pages) > PAGE_COST


@pytest.mark.parametrize(("grows", "pages"), [("list", True), ("cache", True), ("buffer", False)])
def test_2_a_buffer_that_ends_near_the_limit_pages_nobody(grows, pages):
    forecaster = Forecaster(1000 * MIB)
    forecaster.learn(grows=grows, growth_end_bytes=1000 * MIB)
    seen = {
        forecaster.update(step, allocated_bytes=(100 + step) * MIB).level for step in range(900)
    }
    assert ("warning" in seen) == pages


def test_2_a_team_with_dear_pages_gets_a_notice_of_a_leak_and_a_page_of_a_list():
    dear = {forecast.level for forecast in climb(800, page_cost=0.8)}
    assert dear == {"ok", "notice"}
    forecaster = Forecaster(1000 * MIB, page_cost=0.8)
    forecaster.learn(grows="list")
    for step in range(600):
        forecast = forecaster.update(step, allocated_bytes=(100 + step) * MIB)
    assert forecast.level == "warning"


@pytest.mark.parametrize(
    ("cause", "grows", "options", "expected"),
    [
        ("leak", None, {}, ("leak", 0.58)),
        ("leak", "list", {}, ("list", 0.29)),
        ("leak", "cache", {}, ("cache", 5.8)),
        ("leak", "unknown", {}, ("leak", 0.58)),
        ("leak", None, {"planned_steps_left": 290.0}, ("planned", 2.0)),
        ("leak", "list", {"planned_steps_left": 290.0}, ("list", 0.29)),
        ("leak", "list", {"epoch_steps": 120}, ("epoch_end", 0.0)),
        ("fragmentation", "buffer", {}, ("buffer", 580 / 300)),
        ("fragmentation", "unknown", {}, ("reserve", 580 / 300)),
        ("host_memory", None, {}, ("host_memory", 1.45)),
        ("host_memory", "list", {}, ("list", 0.29)),
        ("input", "list", {}, ("input", 580 / 60)),
        ("other_processes", None, {}, ("reserve", 0.58)),
    ],
)
def test_the_evidence_is_what_is_known_of_the_growth(cause, grows, options, expected):
    known = {"planned_steps_left": inf, "epoch_steps": None, **options}
    situation = Situation(
        step=100, previous="ok", seconds_left=None, peak_bytes=1, predicted_peak_bytes=None, grows=grows, **known
    )  # fmt: skip
    span = 100.0 if options.get("epoch_steps") else 1000.0
    near = replace(FAR, cause=cause, span_steps=span)
    kind, distance = evidence_of(near, situation, reach_of(near, situation))
    assert (kind, pytest.approx(distance)) == expected


# Growth that may be intended, and growth that nothing explains


def test_growth_below_the_prediction_pages_a_third_as_far_ahead():
    below = {"observed": 979, "options": {"predicted_peak_bytes": 1000}}
    assert levels(333, 334, **below) == ["warning", "notice"]
    reached = {"observed": 980, "options": {"predicted_peak_bytes": 1000}}
    assert levels(1000, 1001, **reached) == ["warning", "notice"]


def test_the_last_steps_need_no_more_evidence():
    below = {"observed": 979, "options": {"predicted_peak_bytes": 1000}, "span_steps": 50.0}
    assert levels(25, 26, **below) == ["warning", "ok"]


def test_a_leak_beyond_the_prediction_pages_half_again_as_far_ahead():
    def beyond(observed: int, **changes) -> list[str]:
        options = {"predicted_peak_bytes": 1000}
        steps = (900, 1001, 1299, 1499, 1501)
        return levels(*steps, observed=observed, options=options, **changes)

    further = ["warning", "warning", "warning", "warning", "ok"]
    assert beyond(1021) == further
    usual = ["warning", "notice", "notice", "ok", "ok"]
    assert beyond(1020) == usual  # within the prediction's error
    assert beyond(1100, slope=0.0999) == usual  # it was above the prediction all along
    assert beyond(1100, slope=0.1001) == further
    assert beyond(1100, cause="fragmentation") == ["ok"] * 5
    assert levels(
        200, 201, observed=1100, may_die_out=True, options={"predicted_peak_bytes": 1000}
    ) == ["warning", "notice"]


@pytest.mark.parametrize("cause", ["leak", "input", "host_memory", "fragmentation"])
def test_a_planned_end_far_away_changes_nothing(cause):
    for steps_left in range(20, 1100, 40):
        with_plan = level(steps_left, step=100, options={"total_steps": 10_000}, cause=cause)
        assert with_plan == level(steps_left, step=100, cause=cause)


def test_growth_of_less_than_an_epoch_may_end_with_it():
    epochs = {"epoch_steps": 1000}
    # 0.8 * 580 = 464 steps until the epoch's end
    assert level(580, step=536, options=epochs) == "warning"
    assert level(580, step=537, options=epochs) == "notice"
    assert level(580, step=2537, options=epochs) == "notice"
    assert level(300, step=761, options=epochs, cause="fragmentation") == "warning"
    assert level(580, step=999, options=epochs, span_steps=1200.0) == "notice"
    assert level(580, step=999, options=epochs, span_steps=1201.0) == "warning"


def test_growth_of_an_epoch_pages_once_it_goes_on_in_the_next():
    epochs = {"epoch_steps": 1000}
    assert level(580, step=99, options={"epoch_steps": 100_000}, span_steps=90.0) == "ok"
    for begun, expected in {0: "notice", 99: "notice", 100: "warning"}.items():
        assert level(50, step=1000 + begun, options=epochs, span_steps=1000.0) == expected


def test_what_the_leak_finder_found_decides_how_far_ahead_growth_pages():
    # nothing clears a list, however slowly it grows
    assert levels(2000, 2001, grows="list") == ["warning", "ok"]
    assert levels(2000, 2001, grows="list", may_die_out=True) == ["warning", "ok"]
    assert levels(2000, 2001, grows="list", cause="host_memory") == ["warning", "ok"]
    # what ends by itself may be larger than the device, so it pages close to the limit
    for grows, ahead in {"buffer": 100, "cache": 100, "epoch": 100}.items():
        assert levels(0, ahead, ahead + 1, 1.3 * ahead, 1.3 * ahead + 1, grows=grows) == [
            "critical",
            "warning",
            "notice",
            "notice",
            "ok",
        ]
        assert levels(2 * ahead, 2 * ahead + 1, 1301, grows=grows, before="warning") == [
            "warning",
            "notice",
            "ok",
        ]
        assert levels(50, 51, grows=grows, jump_error=0.4) == ["warning", "notice"]
    assert levels(2000, 2001, grows="list", jump_error=0.4) == ["warning", "ok"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"undamped_steps_left": 3000.0}, True),
        ({"undamped_steps_left": 3001.0}, False),
        ({"cause": "input"}, False),
    ],
)
def test_a_leak_is_worth_a_diagnosis_before_any_page(changes, expected):
    assert is_worth_diagnosis(replace(FAR, **changes)) == expected
    assert not is_worth_diagnosis(None)


def test_a_page_waits_for_a_diagnosis_while_there_is_time():
    assert levels(20, 21, grows="unknown") == ["critical", "ok"]
    assert levels(20, 21, grows="unknown", before="warning") == ["critical", "warning"]
    forecaster = Forecaster(LIMIT)
    forecaster.update(10, allocated_bytes=1)
    forecaster.learn(grows="unknown")
    situations = [forecaster._situation(step, FAR) for step in (10, 50, 51)]
    assert [level_of(FAR, one, reach_of(FAR, one)) for one in situations] == ["ok", "ok", "warning"]


def test_nothing_rises_while_growth_pauses_for_longer_than_it_ever_did():
    assert levels(10, 500, pauses=True) == ["ok", "ok"]
    assert levels(10, 500, 2000, 2001, pauses=True, before="warning") == [*["warning"] * 3, "ok"]
    assert level(10, pauses=True, before="notice") == "notice"


def test_what_the_leak_finder_found_explains_only_what_objects_keep():
    for grows in ("list", "buffer"):
        for cause in ("input", "fragmentation", "other_processes"):
            steps = range(20, 1400, 30)
            usual = [level(one, cause=cause) for one in steps]
            assert [level(one, cause=cause, grows=grows) for one in steps] == usual


# Rule 4: known without a trend


def after(options: dict | None = None, learned: dict | None = None, **readings) -> Forecast:
    """Return the forecast after steps 9 and 10, which take two seconds."""
    forecaster = Forecaster(LIMIT, **options or {})
    forecaster.learn(**learned or {})
    forecaster.update(9, time_s=18.0)
    return forecaster.update(10, time_s=20.0, **readings)


# allocated 700 + excess 50 + unusable 50 + others 100 = 900: of 100 free pieces a step uses 50
NEED_900 = {
    "allocated_bytes": 700, "peak_allocated_bytes": 750, "inactive_split_bytes": 100,
    "reserved_bytes": 800, "device_used_bytes": 900,
}  # fmt: skip


def test_rule_4_optimizer_state_is_added_to_all_that_a_step_needs():
    def first_step(state: int, optimizer_steps: int | None = 0) -> Forecast:
        return after({"optimizer_state_bytes": state}, optimizer_steps=optimizer_steps, **NEED_900)

    assert first_step(100).level == "ok"
    assert first_step(101) == Forecast(
        10, "critical", 0.97, "optimizer_state", 11, 11, 11, 2.0, 750, LIMIT
    )
    assert first_step(101, 1).level == first_step(101, None).level == "ok"


def test_rule_4_an_evaluation_is_added_to_what_stays():
    def with_eval(size: int, state: int | None = None, optimizer_steps: int = 5) -> Forecast:
        return after(
            {"optimizer_state_bytes": state}, {"eval_bytes": size}, optimizer_steps=optimizer_steps, **NEED_900
        )  # fmt: skip

    assert with_eval(150).level == "ok"
    assert with_eval(151) == Forecast(10, "warning", 0.9, "eval", used_bytes=750, limit_bytes=LIMIT)
    # state that doesn't exist yet is added
    assert with_eval(70, 80, 0).level == "ok"
    assert with_eval(71, 80, 0).cause == "eval"
    assert with_eval(71, 80, 1).level == "ok"


def test_rule_4_an_evaluation_that_has_passed_is_no_longer_expected():
    forecaster = Forecaster(LIMIT)
    forecaster.learn(eval_bytes=500)
    assert forecaster.update(1, allocated_bytes=600).cause == "eval"
    forecaster.update(2, allocated_bytes=600, phase="preflight")
    assert forecaster.update(3, allocated_bytes=600).cause == "eval"
    forecaster.update(4, allocated_bytes=600, phase="checkpoint")
    forecaster.learn(eval_bytes=500)  # the same hint again
    assert [forecaster.update(step, allocated_bytes=600).level for step in range(5, 15)][-1] == "ok"
    forecaster.learn(eval_bytes=501)
    assert forecaster.update(15, allocated_bytes=600).cause == "eval"


def inputs(sizes, largest: float | None, floor: int = 500) -> Forecast:
    """Return the forecast after steps whose excess is their input size."""
    forecaster = Forecaster(LIMIT, max_input_size=largest)
    forecast = Forecast(0)
    for step, size in enumerate(sizes, 1):
        forecast = forecaster.update(
            step, allocated_bytes=floor, peak_allocated_bytes=floor + size, input_size=size
        )
    return forecast


EVEN_SIZES = [1 + step * 37 % 101 for step in range(101)]


def test_rule_4_the_largest_input_may_exceed_the_limit_by_a_hundredth():
    assert inputs(EVEN_SIZES, None).level == "ok"
    assert inputs(EVEN_SIZES, 509).level == "ok"
    found = inputs(EVEN_SIZES, 511)
    assert (found.level, found.cause, found.oom_probability) == ("warning", "input", 0.88)
    assert (found.eta_step, found.limit_bytes, found.step) == (None, LIMIT, 101)


def test_rule_4_the_largest_input_takes_free_pieces_before_more_of_the_device():
    def last(largest: int) -> Forecast:
        """Return the last forecast of steps up to 601 bytes, the last with 350 in pieces."""
        forecaster = Forecaster(LIMIT, max_input_size=largest)
        for step, size in enumerate([*EVEN_SIZES, 100], 1):
            forecast = forecaster.update(
                step,
                allocated_bytes=500,
                peak_allocated_bytes=500 + size,
                reserved_bytes=950,
                inactive_split_bytes=450,
                input_size=size,
            )
        return forecast

    assert last(400).level == "ok"
    assert (last(520).level, last(520).cause) == ("warning", "input")


def heavy_tailed(count: int) -> list[int]:
    source = random.Random(1)
    return [int(1e6 * source.lognormvariate(0, 0.5)) for _ in range(count)]


def test_rule_5_a_heavy_tail_is_a_notice_at_most():
    def last(limit: int, steps: int | None = None) -> Forecast:
        forecaster = Forecaster(limit, total_steps=steps)
        for step, excess in enumerate(heavy_tailed(300)):
            forecast = forecaster.update(
                step, allocated_bytes=10**6, peak_allocated_bytes=10**6 + excess
            )
        return forecast

    near = last(6 * 10**6)
    assert (near.level, near.cause) == ("notice", "tail")
    assert 0.7 <= near.oom_probability < 0.92
    assert (last(10**9).level, last(10**9).oom_probability) == ("ok", 0.01)
    assert last(6 * 10**6, 300).oom_probability < last(6 * 10**6, 400).oom_probability
    assert last(6 * 10**6, 300).oom_probability == 0.01  # one step to go
    assert last(6 * 10**6, 299).oom_probability == 0.01  # none


@pytest.mark.parametrize(("limit", "horizon"), [(8 * 10**6, 1000)])
def test_rule_5_a_run_without_a_plan_is_expected_to_last_a_thousand_steps(limit, horizon):
    def probability(total: int | None, count: int, first: int = 0) -> float:
        forecaster = Forecaster(limit, total_steps=total)
        for step, excess in enumerate(heavy_tailed(count), first):
            forecast = forecaster.update(
                step, allocated_bytes=10**6, peak_allocated_bytes=10**6 + excess
            )
        return forecast.oom_probability

    assert probability(None, 300) == pytest.approx(probability(299 + horizon, 300))
    assert probability(None, 300, 50) == pytest.approx(probability(349 + horizon, 300, 50))
    # a longer one is expected to last as long again
    assert probability(None, 1500, 7) == pytest.approx(probability(1506 + 1499, 1500, 7))


# Readings and hints


@pytest.mark.parametrize(
    "options", [{"limit_bytes": 0}, {"limit_bytes": -1}, {"limit_bytes": 1, "host_limit_bytes": 0}]
)
def test_a_limit_is_positive(options):
    with pytest.raises(ValueError, match="Limits must be positive, got"):
        Forecaster(**options)
    assert Forecaster(1, host_limit_bytes=1).newest == Forecast(0)


def test_it_learns_only_what_is_known():
    known = {
        "optimizer_state_bytes": 1, "max_input_size": 2.0, "epoch_steps": 3,
        "predicted_peak_bytes": 4,
    }  # fmt: skip
    forecaster = Forecaster(LIMIT, total_steps=5, **known)

    def facts() -> tuple:
        return (
            forecaster._sudden.state_bytes, forecaster._sudden.max_input_size, forecaster._knowledge.epoch_steps,
            forecaster._knowledge.predicted_peak_bytes, forecaster._sudden.eval_bytes, forecaster.total_steps,
        )  # fmt: skip

    assert facts() == (1, 2.0, 3, 4, None, 5)
    forecaster.learn()
    assert facts() == (1, 2.0, 3, 4, None, 5)
    forecaster.learn(
        optimizer_state_bytes=0, max_input_size=20.0, epoch_steps=30, predicted_peak_bytes=40,
        eval_bytes=50,
    )  # fmt: skip
    assert facts() == (0, 20.0, 30, 40, 50, 5)


def test_the_newest_forecast_is_that_of_the_last_update():
    forecaster = Forecaster(LIMIT)
    forecast = forecaster.update(3, allocated_bytes=10, peak_allocated_bytes=15)
    assert forecaster.newest is forecast
    assert forecast == Forecast(3, oom_probability=0.01, used_bytes=15, limit_bytes=LIMIT)
    # a step that doesn't advance starts again
    assert forecaster.update(3).used_bytes is None
    assert forecaster.update(4, allocated_bytes=7).used_bytes == 7
    assert forecaster.update(2).used_bytes is None


def test_without_allocated_bytes_the_devices_count():
    forecaster = Forecaster(LIMIT)
    assert forecaster.update(1, device_used_bytes=9).used_bytes == 9
    assert forecaster.update(2, device_used_bytes=9, allocated_bytes=0).used_bytes == 0


# Trends: a line of 1 MiB a step, whose end is known


MIB = 2**20


def climb(steps: int, *, first: int = 0, limit: int = 1000, **options) -> list[Forecast]:
    """Return the forecasts of a floor of 100 MiB that grows by 1 MiB a step."""
    forecaster = Forecaster(limit * MIB, **options)
    return [
        forecaster.update(
            step, time_s=2.0 * step, allocated_bytes=(100 + step - first) * MIB, optimizer_steps=1
        )
        for step in range(first, first + steps)
    ]


def test_a_line_is_forecast_to_its_end():
    forecasts = climb(800)
    pages = [one for one in forecasts if one.level == "warning"]
    first = pages[0]
    # 1.04 times the steps left are those that the trend has lasted
    assert first.step == pytest.approx((1.04 * 900 + 5) / 2.04, abs=16)
    assert first.eta_step == pytest.approx(first.step + 1.04 * (900 - first.step), abs=1)
    assert first.eta_s == pytest.approx(2.0 * (first.eta_step - first.step))
    assert first.growth_bytes_per_step == pytest.approx(MIB, rel=0.001)
    assert first.growing_since_step == pytest.approx(5, abs=8)
    assert (first.cause, first.limit_bytes) == ("leak", 1000 * MIB)
    assert first.used_bytes == (100 + first.step) * MIB
    assert first.oom_probability == death_probability("leak", 1.0)
    notice = next(one for one in forecasts if one.level == "notice")
    # the same for a third more steps
    assert notice.step == pytest.approx((1.04 * 900 + 1.3 * 5) / 2.34, abs=16)
    silent = forecasts[notice.step - 1]
    assert silent.oom_probability == 0.3
    assert (silent.eta_step, silent.cause) == (None, None)
    assert silent.growth_bytes_per_step == pytest.approx(MIB, rel=0.001)
    critical = next(one for one in climb(899) if one.level == "critical")
    # two minutes are 60 steps
    assert critical.step == pytest.approx(900 - 60 / 1.04, abs=1.5)


@pytest.mark.parametrize("pace", [2, 1.5, 1])
def test_what_has_grown_is_read_whatever_the_pace_has_become(pace):
    forecaster = Forecaster(4000 * MIB)
    for step in range(601):
        held = 100 + step + (pace - 1) * max(0, step - 300)
        forecast = forecaster.update(step, allocated_bytes=round(held * MIB), optimizer_steps=1)
    since = forecast.growing_since_step
    assert since == pytest.approx(5, abs=8)
    assert forecast.growth_bytes_per_step == pytest.approx(pace * MIB, rel=0.15)
    assert forecast.grown_bytes == pytest.approx((held - 100 - since) * MIB, rel=0.08)


def test_growth_of_a_floor_by_inputs_is_read_from_the_floor():
    source, forecaster, largest = random.Random(1), Forecaster(3000 * MIB), 0
    for step in range(500):
        size = 100 + step - source.randrange(60)
        largest = max(largest, size)
        held = (100 + largest) * MIB
        forecast = forecaster.update(step, allocated_bytes=held, input_size=size, optimizer_steps=1)
        if step == 20:
            first = held
    assert forecaster.evidence[0] == "input"
    assert forecast.growing_since_step == pytest.approx(12, abs=8)
    assert forecast.grown_bytes == pytest.approx(held - first, rel=0.05)


def inputs_grow(sizes_of):
    """Yield (floor, excess, forecast) of each step. sizes_of: floor and excess in MiB."""
    forecaster = Forecaster(3000 * MIB)
    for step in range(500):
        floor, excess = (round(size * MIB) for size in sizes_of(step))
        yield (
            floor,
            excess,
            forecaster.update(
                step, allocated_bytes=floor, peak_allocated_bytes=floor + excess,
                input_size=100 + step, optimizer_steps=1,
            ),
        )  # fmt: skip


def test_growth_of_peaks_that_becomes_the_floors_is_read_from_the_floor():
    told = list(inputs_grow(lambda step: (2000 + max(0, step - 100), 100 + step)))
    begins = [forecast.growing_since_step for *_, forecast in told[120:]]
    assert min(begins) < 10 and max(begins) > 80  # both series were the steeper one
    for floor, excess, forecast in told[120:]:
        is_floor = forecast.growing_since_step > 80
        grown = floor - 2000 * MIB if is_floor else excess - 105 * MIB
        assert forecast.grown_bytes == pytest.approx(grown, abs=16 * MIB)
    warned = next(forecast for *_, forecast in told if forecast.level == "warning")
    assert warned.cause == "input" and warned.grown_bytes < 500 * MIB


def test_growth_of_the_floor_that_becomes_that_of_peaks_is_read_from_the_peaks():
    told = list(inputs_grow(lambda step: (550 + step / 2, 100 + max(0, step - 300))))
    assert told[299][2].growing_since_step < 10
    assert told[299][2].grown_bytes == pytest.approx(148 * MIB, abs=4 * MIB)
    for _, excess, forecast in told[350:]:
        assert forecast.growing_since_step == pytest.approx(300, abs=16)
        assert forecast.grown_bytes == pytest.approx(excess - 100 * MIB, abs=16 * MIB)


def test_a_trend_begins_after_five_steps_of_the_first_optimizer_step():
    forecaster = Forecaster(1000 * MIB)
    for step in range(60):
        forecaster.update(step, allocated_bytes=(100 + step) * MIB, optimizer_steps=int(step > 9))
    # the last step without an optimizer step is 9
    assert forecaster.newest.growing_since_step == 14
    assert climb(60)[-1].growing_since_step == 5
    assert climb(60, first=1000)[-1].growing_since_step == 1005


def test_growth_that_takes_the_room_of_a_measured_evaluation_is_the_cause():
    forecaster = Forecaster(1000 * MIB)
    forecaster.learn(eval_bytes=600 * MIB)
    forecasts = [forecaster.update(step, allocated_bytes=(100 + step) * MIB) for step in range(340)]
    page = next(one for one in forecasts if one.level == "warning")
    # the evaluation fits until the floor is at 400 MiB, and the growth ends at 1,000 MiB
    assert (page.step, page.cause) == (301, "leak")
    assert page.eta_low < 900 < page.eta_high
    assert page.oom_probability == EVAL_PROBABILITY


def test_an_evaluation_that_would_not_fit_without_the_growth_is_the_cause_itself():
    forecaster = Forecaster(1000 * MIB)
    forecaster.learn(eval_bytes=950 * MIB)
    for step in range(200):
        forecast = forecaster.update(step, allocated_bytes=(100 + step) * MIB)
        assert (forecast.level, forecast.cause, forecast.eta_step) == ("warning", "eval", None)


def test_a_planned_end_before_the_limit_silences_a_line():
    assert {one.level for one in climb(700, total_steps=700)} == {"ok"}
    planned = climb(800, total_steps=3000)
    assert "warning" in {one.level for one in planned}


def test_the_host_has_a_limit_of_its_own():
    forecaster = Forecaster(10**6 * MIB, host_limit_bytes=1000 * MIB)
    forecasts = [
        forecaster.update(step, allocated_bytes=5 * MIB, host_used_bytes=(100 + step) * MIB)
        for step in range(800)
    ]
    page = next(one for one in forecasts if one.level == "warning")
    # it may page up to 0.4 of the steps that the trend has lasted
    assert page.step == pytest.approx((1.04 * 900 + 0.4 * 8) / 1.44, abs=26)
    assert (page.cause, page.limit_bytes) == ("host_memory", 1000 * MIB)
    assert page.used_bytes == (100 + page.step) * MIB


def test_the_nearer_of_device_and_host_is_reported():
    forecaster = Forecaster(1000 * MIB, host_limit_bytes=1000 * MIB)
    for step in range(700):
        forecast = forecaster.update(
            step, allocated_bytes=(100 + step) * MIB, host_used_bytes=(101 + step) * MIB
        )
    assert (forecast.level, forecast.cause) == ("warning", "host_memory")
