"""How far ahead growth is trusted: one test for each rule of `memagent.forecast.projection`."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from memagent.forecast.projection import (
    LAST_STEPS,
    LAST_STEPS_OF_INPUT,
    PAGE_AHEAD,
    PAGE_BIAS,
    project,
)
from memagent.forecast.trend import Trend

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


def test_rule_4_in_the_last_steps_any_trend_may_page():
    short = replace(LINE, span_steps=50.0)
    assert project({"host_memory": short}, LAST_STEPS, 10_000).page_ahead == LAST_STEPS / 50
    assert project({"input": short}, LAST_STEPS, 10_000).page_ahead == LAST_STEPS_OF_INPUT / 50


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


def test_its_probability_falls_with_the_distance_and_at_the_planned_end():
    near, far = project({"leak": LINE}, 100, 10_000), project({"leak": LINE}, 2000, 10_000)
    assert near.oom_probability(math.inf) > far.oom_probability(math.inf) > 0.7
    assert far.oom_probability(2000 * PAGE_BIAS) == pytest.approx(far.oom_probability(math.inf) / 2)
    assert far.oom_probability(500) < 0.01
    assert far.oom_probability(0) == 0
    assert project({"leak": LINE}, 0, 10_000).oom_probability(10) > 0.9
