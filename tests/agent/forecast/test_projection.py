"""How far ahead growth is trusted: one test for each rule of `memagent.forecast.projection`."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from memagent.forecast.projection import (
    DEVICE_PAGE_AHEAD,
    LAST_STEPS,
    LAST_STEPS_OF_INPUT,
    MAX_LAST_AHEAD,
    MAX_YOUNG_ERROR,
    PAGE_AHEAD,
    PAGE_BIAS,
    YOUNG_STEPS,
    Projection,
    project,
)
from memagent.forecast.trend import MAX_TRUSTED_JUMP_ERROR, find_trend
from memagent.forecast.types import Trend

LINE = Trend(
    slope=1.0, error=0.05, rate=0.0, slow_slope=1.0, slow_rate=0.0, since_step=0.0, span_steps=1000.0, rise=1000.0, jump=1.0,
    jump_error=0.0, at_step=1000.0, level=1000.0,
)  # fmt: skip
DYING = replace(LINE, slow_slope=0.5, slow_rate=-0.01)


def test_rule_1_growth_rates_add_up_and_the_larger_is_the_cause():
    both = project(
        {"leak": LINE, "fragmentation": replace(LINE, slope=3.0, slow_slope=3.0)}, 400, 10_000
    )
    assert both.cause == "fragmentation"
    assert both.steps_left == pytest.approx(100 * PAGE_BIAS)


def test_rule_2_a_leak_is_projected_half_as_far_as_it_was_observed():
    assert project({"leak": LINE}, 500, 10_000).page_ahead == PAGE_AHEAD
    of_device = project({"leak": LINE}, 500, 10_000, is_device=True)
    assert of_device.page_ahead == DEVICE_PAGE_AHEAD


@pytest.mark.parametrize("cause", ["input", "host_memory"])
def test_rule_3_input_lengths_and_host_memory_have_a_lower_probability(cause):
    assert project({cause: LINE}, 500, 10_000).page_ahead < PAGE_AHEAD


def test_rule_3_saturating_growth_has_a_lower_probability_and_a_later_eta():
    line, dying = project({"leak": LINE}, 400, 10_000), project({"leak": DYING}, 400, 10_000)
    assert dying.may_die_out and not line.may_die_out
    assert dying.page_ahead < line.page_ahead
    assert dying.steps_left > line.steps_left
    assert dying.steps_left_high > line.steps_left_high


def test_rule_3_few_irregular_jumps_have_a_lower_probability():
    believed = [
        project({"leak": replace(LINE, jump_error=error)}, 400, 10_000).page_ahead
        for error in (0.0, 0.3, 0.8)
    ]
    assert (
        believed == sorted(believed, reverse=True)
        and believed[0] == PAGE_AHEAD
        and believed[2] < 0.2
    )


@pytest.mark.parametrize("headroom", [400, 1])
def test_rule_3_a_few_irregular_jumps_never_page_however_close_the_limit(headroom):
    jumps = replace(LINE, jump=50.0, jump_error=MAX_TRUSTED_JUMP_ERROR)
    assert project({"leak": jumps}, headroom, 10_000).page_ahead > 0
    fewer = replace(jumps, jump_error=MAX_TRUSTED_JUMP_ERROR + 0.01)
    assert project({"leak": fewer}, headroom, 10_000).page_ahead < 0


def test_rule_4_in_the_last_steps_any_trend_may_page():
    short = replace(LINE, span_steps=200.0)
    few = project({"host_memory": replace(short, jump_error=0.7)}, LAST_STEPS, 10_000)
    few = replace(few, needs_jumps=True, span_steps=120.0)
    assert few.page_ahead == LAST_STEPS / 120
    assert project({"input": short}, LAST_STEPS, 10_000).page_ahead == LAST_STEPS_OF_INPUT / 200
    assert replace(few, span_steps=99.0).page_ahead == MAX_LAST_AHEAD


@pytest.mark.parametrize(
    ("steps", "error", "pages"),
    [
        (YOUNG_STEPS - 1, MAX_YOUNG_ERROR + 0.01, False),
        (YOUNG_STEPS, MAX_YOUNG_ERROR + 0.01, True),
        (YOUNG_STEPS - 1, MAX_YOUNG_ERROR - 0.01, True),
    ],
)
def test_rule_6_young_growth_at_an_uncertain_pace_never_pages(steps, error, pages):
    young = replace(LINE, slope=2.0, error=2.0 * error, span_steps=float(steps))
    assert (project({"leak": young}, 20, 10_000).page_ahead > 0) == pages
    assert project({"leak": young}, 20, 10_000, is_device=True).page_ahead > 0


def test_rule_4_growth_one_or_two_jumps_from_the_limit_does_not_die_out():
    assert not project({"leak": replace(DYING, jump=350.0)}, 400, 10_000).may_die_out


def test_growth_in_jumps_widens_the_interval_by_a_jump():
    smooth, jumpy = (
        project({"leak": replace(LINE, jump=jump)}, 400, 10_000) for jump in (1.0, 200.0)
    )
    assert jumpy.steps_left_low < smooth.steps_left_low - 80
    assert jumpy.steps_left_high > smooth.steps_left_high + 150


def test_there_is_no_projection_without_growth_that_reaches_the_limit():
    assert project({}, 100, 10_000) is None
    assert project({"leak": replace(LINE, rate=-0.01)}, 200, 10_000) is None


def test_the_projection_of_a_line_by_hand():
    # 400 bytes at 1 byte a step; the slope is off by 0.05 and 15 percent, and a jump is 1 byte
    assert project({"leak": LINE}, 400, 10_000) == Projection(
        cause="leak",
        steps_left=pytest.approx(416.0),
        steps_left_low=pytest.approx((400 - 0.5) / (1.05 * 1.15)),
        steps_left_high=pytest.approx((400 + 1) / (0.95 / 1.15)),
        undamped_steps_left=pytest.approx(416.0),
        span_steps=1000.0,
        slope=1.0,
        since_step=0.0,
        limit_bytes=10_000,
        may_die_out=False,
        jump_error=0.0,
        rise_bytes=1000.0,
        slope_error=pytest.approx(0.05),
    )


def test_an_uncertain_slope_is_at_least_three_tenths():
    wild = project({"leak": replace(LINE, slope=2.0, error=1.9, slow_slope=2.0)}, 400, 10_000)
    assert wild.steps_left_low == pytest.approx(399.5 / (3.9 * 1.15))
    assert wild.steps_left_high == pytest.approx(401 / 0.6)


def test_the_interval_is_at_most_four_times_the_steps_left_and_a_jump():
    dying = project({"leak": replace(DYING, slow_rate=-1.0, jump=8.0)}, 400, 10_000)
    # it never ends by the slow reading, so four times the other counts
    assert dying.steps_left == pytest.approx(math.sqrt(416 * 4 * 416))
    assert dying.steps_left_high == pytest.approx(4 * 832 + 8)
    assert dying.steps_left_low == pytest.approx(396 / (1.05 * 1.15))
    assert dying.undamped_steps_left == pytest.approx(416)


def test_growth_that_may_die_out_ends_between_both_readings():
    # by the slow reading after ln(1 - 0.4) / -0.0005 steps, more than twice the 500 that it lasted
    slow = replace(LINE, slow_slope=0.5, slow_rate=-0.0005, span_steps=500.0)
    until = 1.04 * math.log(0.6) / -0.0005
    both = project({"leak": slow}, 400, 10_000)
    assert until == pytest.approx(1062.5, abs=0.1)
    assert both.may_die_out
    assert both.steps_left == pytest.approx(math.sqrt(416 * until))
    assert both.steps_left_high == pytest.approx(until)
    assert not project({"leak": replace(slow, span_steps=532.0)}, 400, 10_000).may_die_out
    assert project({"leak": replace(slow, span_steps=531.0)}, 400, 10_000).may_die_out


@pytest.mark.parametrize(("jump", "needs_jumps"), [(285.0, True), (286.0, False)])
def test_rule_4_one_and_a_half_jumps_are_trusted(jump, needs_jumps):
    one = project({"leak": replace(DYING, jump=jump, jump_error=0.4)}, 400, 10_000)
    assert one.may_die_out == one.needs_jumps == needs_jumps
    assert (one.page_ahead < PAGE_AHEAD) == needs_jumps


def test_rule_1_rates_are_weighted_by_their_slopes():
    bending = replace(LINE, slope=3.0, rate=-0.002, slow_slope=3.0, slow_rate=-0.002, error=0.2)
    both = project({"leak": LINE, "fragmentation": bending}, 400, 10_000)
    rate = -0.002 * 3 / 4
    assert both.undamped_steps_left == pytest.approx(1.04 * math.log1p(400 * rate / 4) / rate)
    assert both.slope == 4.0
    assert both.steps_left_low == pytest.approx(
        math.log1p(399.5 * rate / (4.25 * 1.15)) / rate
    )  # fmt: skip
    slow = replace(LINE, slow_slope=0.25, slow_rate=-0.0004, span_steps=100.0)
    total = project(
        {"leak": slow, "fragmentation": replace(slow, slow_slope=0.75, slow_rate=0.0)}, 400, 10_000
    )
    until = 1.04 * math.log1p(400 * -0.0001) / -0.0001
    assert total.may_die_out
    assert total.steps_left == pytest.approx(math.sqrt(208 * until))


def test_rule_1_the_cause_is_what_grows_most_until_the_end():
    # slower now, but it accelerates
    late = replace(LINE, slope=0.8, rate=0.01, slow_slope=0.8)
    assert project({"leak": LINE, "fragmentation": late}, 400, 10_000).cause == "fragmentation"
    assert project({"leak": LINE, "fragmentation": late}, 10, 10_000).cause == "leak"


def test_rule_3_what_each_cause_may_page():
    def page_ahead(cause: str, span: float = 1000.0, **changes) -> float:
        return replace(
            project({cause: replace(LINE, span_steps=span)}, 400, 10_000), **changes
        ).page_ahead

    assert page_ahead("leak") == 1.0
    assert page_ahead("fragmentation") == 0.3
    assert page_ahead("host_memory") == 0.4
    assert page_ahead("input") == 0.06
    assert page_ahead("leak", may_die_out=True) == 0.2
    assert page_ahead("input", may_die_out=True) == 0.06
    assert page_ahead("leak", jump_error=0.05) == 1.0
    assert page_ahead("leak", jump_error=0.4) == 0.25
    assert page_ahead("leak", jump_error=0.4, may_die_out=True) == 0.2
    assert page_ahead("leak", span=100.0, may_die_out=True) == 0.25
    assert page_ahead("input", span=100.0) == 0.14
    assert page_ahead("leak", span=10.0) == MAX_LAST_AHEAD  # so far ahead it may die out


def test_the_distance_is_a_multiple_of_what_was_observed():
    assert project({"leak": LINE}, 400, 10_000).ahead == pytest.approx(0.416)
    dying = project({"leak": DYING}, 400, 10_000)
    assert dying.steps_left == pytest.approx(832)
    assert dying.ahead == pytest.approx(0.416)


def test_a_projection_is_immutable():
    with pytest.raises(AttributeError):
        project({"leak": LINE}, 400, 10_000).slope = 2.0
    fields = ["leak", *[1.0] * 7, 5]
    assert (Projection(*fields).may_die_out, Projection(*fields).jump_error) == (False, 0.0)


def test_rule_5_the_interval_includes_what_of_the_reserve_may_be_usable():
    usual, unsure = (
        project({"leak": LINE}, 400, 10_000, bounds) for bounds in ((0.0, 0.0), (50.0, 120.0))
    )
    assert unsure.steps_left == usual.steps_left
    assert usual.steps_left_low - unsure.steps_left_low == pytest.approx(120 / (1.05 * 1.15))
    assert unsure.steps_left_high - usual.steps_left_high == pytest.approx(50 / (0.95 / 1.15))


# Jumps: the end is one of them

NEAR = Projection(
    cause="leak", steps_left=58.0, steps_left_low=50.0, steps_left_high=70.0, undamped_steps_left=58.0,
    span_steps=100.0, slope=1.0, since_step=0.0, limit_bytes=1000,
)  # fmt: skip


def staircase(period: int, count: int = 96, sizes=(10.0,)) -> Trend:
    """Trend of a series that rises at each multiple of `period`, by these sizes in turn."""
    value, values = 0.0, []
    for step in range(count):
        if step and step % period == 0:
            value += sizes[step // period % len(sizes)]
        values.append(value)
    trend = find_trend([float(step) for step in range(count)], values, 1.0)
    assert trend is not None
    return trend


@pytest.mark.parametrize(("headroom", "jumps"), [(0.5, 1), (10.0, 1), (10.5, 2), (35.0, 4)])
def test_growth_by_jumps_that_are_alike_ends_at_one_of_them(headroom, jumps):
    trend = staircase(12)
    assert (trend.period, trend.mean_jump, trend.last_jump_step) == (12.0, 10.0, 84.0)
    for now in (95.0, 90.0):
        ended = NEAR.at_a_jump(trend, headroom, now)
        assert now + ended.steps_left == 84 + 12 * jumps
        assert ended.steps_left_low <= ended.steps_left <= ended.steps_left_high
    assert NEAR.at_a_jump(trend, headroom, 300.0).steps_left == 1, "the jump is late"


def test_the_next_jump_at_random_is_as_far_away_as_ever():
    trend = staircase(12, sizes=(6.0, 6.0, 30.0))
    assert trend.period == 12.0 and not trend.has_like_jumps
    assert NEAR.at_a_jump(trend, 0.1, 95.0).steps_left == 12
    assert NEAR.at_a_jump(trend, 2.5 * trend.mean_jump, 95.0).steps_left == 36


def test_straight_growth_ends_at_any_step():
    trend = find_trend([float(step) for step in range(96)], [2.0 * step for step in range(96)], 1)
    assert trend is not None and NEAR.at_a_jump(trend, 50.0, 95.0) == NEAR


def test_growth_that_is_known_not_to_die_out_ends_as_read_straight():
    dying = replace(NEAR, steps_left=80.0, undamped_steps_left=40.0, may_die_out=True)
    straight = dying.without_end()
    assert (straight.steps_left, straight.may_die_out) == (40.0, False)
