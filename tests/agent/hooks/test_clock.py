"""The choice of the optimizer whose steps count; numbers are those of hooks/clock.py."""

from __future__ import annotations

import gc

import pytest
import torch

from memagent.hooks.clock import AdaptiveClock, FirstClock


def optimizer(weight=None):
    return torch.optim.SGD(
        [torch.nn.Parameter(torch.ones(1)) if weight is None else weight], lr=0.1
    )


@pytest.fixture
def two():
    return optimizer(), optimizer()


def count(clock, *stepping):
    return sum(clock.steps_ended(item) for item in stepping)


def adaptive(*optimizers):
    clock = AdaptiveClock()
    for item in optimizers:
        clock.add(item)
    return clock


def test_the_first_clock_counts_the_first_and_nothing_else(two):
    clock = FirstClock()
    for item in two:
        clock.add(item)
    assert count(clock, *two * 3) == 3 and count(clock, *[two[1]] * 50) == 0


def test_1_the_first_optimizer_is_the_clock(two):
    assert count(adaptive(*two), *two * 20) == 20


def test_2_an_optimizer_of_the_same_parameters_replaces_it(two):
    clock = adaptive(*two)
    count(clock, *two)
    again = optimizer(two[0].param_groups[0]["params"][0])
    clock.add(again)
    assert count(clock, again, again, two[1]) == 2


def test_3_if_the_clock_is_gone_the_next_optimizer_replaces_it():
    one, other = optimizer(), optimizer()
    clock = adaptive(one, other)
    count(clock, one)
    del one
    gc.collect()
    assert count(clock, other, other) == 2


def test_4_steps_of_another_training_are_counted_from_its_start(two):
    clock = adaptive(*two)
    count(clock, two[0])
    assert count(clock, *[two[1]] * 7) == 0
    assert count(clock, two[1]) == 8 and count(clock, two[1]) == 1


def test_4_a_clock_that_never_steps_is_replaced_at_once(two):
    assert [adaptive(*two).steps_ended(two[1]), count(adaptive(*two), two[1], two[1], two[1])] == [
        0,
        3,
    ]


@pytest.mark.parametrize("ratio", [1, 5, 8, 20])
def test_4_a_critic_may_step_more_often(two, ratio):
    clock = adaptive(*two)
    warm = [two[0], *[two[1]] * min(ratio, 7)]
    ticks = count(
        clock, *warm, *[two[0], *[two[1]] * min(ratio, 14)], *[two[0], *[two[1]] * ratio] * 3
    )
    assert ticks == 5


def test_5_each_of_a_studys_short_trials_is_counted():
    clock, trials, ticks = AdaptiveClock(), [], 0
    for _ in range(30):  # the study keeps them all
        trials.append(optimizer())
        clock.add(trials[-1])
        ticks += count(clock, *[trials[-1]] * 4)
    assert ticks == 120


@pytest.mark.parametrize("inner_steps", [2, 5])
def test_5_new_optimizers_between_the_clocks_steps_are_not_counted(inner_steps):
    """As with meta-learning: an inner loop trains a copy for each outer step."""
    outer = optimizer()
    clock = adaptive(outer)
    ticks = []
    for _ in range(10):
        ticks.append(count(clock, outer))
        inner = optimizer()
        clock.add(inner)
        ticks.append(count(clock, *[inner] * inner_steps))
    assert ticks == [1, 0] * 10


def test_an_inner_optimizer_that_steps_within_an_outer_one_counts_once():
    """ZeroRedundancyOptimizer, and wrappers such as SAM: both step, with the same parameters."""
    outer = optimizer()
    inner = optimizer(outer.param_groups[0]["params"][0])
    assert count(adaptive(outer, inner), *[inner, outer] * 10) == 10
