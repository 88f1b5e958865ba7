"""A series in bounded memory, and the teeth that it detects."""

from __future__ import annotations

import random
from math import inf

import pytest

from memagent.forecast.bucketed_series import MAX_BUCKETS, BucketedSeries


def filled(values, keep=min) -> BucketedSeries:
    trail = BucketedSeries(keep)
    for step, value in enumerate(values):
        trail.add(step, value, 1.0)
    return trail


def test_rule_1_a_bucket_holds_its_minimum_or_maximum():
    values = [float(step % 4) for step in range(4 * MAX_BUCKETS)]
    assert set(filled(values).values) == {0.0}
    assert set(filled(values, max).values) == {3.0}


def test_rule_2_the_number_of_buckets_does_not_grow_with_the_run():
    trail = filled(range(100_000))
    assert MAX_BUCKETS / 2 <= len(trail.steps) < MAX_BUCKETS
    assert trail.width == 1024


def test_the_rise_is_that_of_the_newest_bucket_above_the_lowest():
    source = random.Random(1)
    assert BucketedSeries(min).rise == -inf
    for keep in (min, max):
        trail = BucketedSeries(keep)
        for step in range(5 * MAX_BUCKETS):
            trail.add(step, source.uniform(0, 100) + step, 1.0)
            if trail.values:
                assert trail.rise == trail.values[-1] - min(trail.values)
        trail.clear()
        assert trail.rise == -inf


def test_rule_3_a_restarted_sawtooth_is_not_growth():
    assert filled([float(step % 50) for step in range(80)]).repeats_from() < 50


def test_rule_3_a_rise_above_the_last_tooth_is_growth():
    rising = [float(step) for step in range(50)] + [float(step) for step in range(70)]
    assert filled(rising).repeats_from() == inf


def test_rule_3_a_spike_at_the_start_hides_no_leak():
    assert filled([0.0, 90.0, 0.0] + [0.5 * step for step in range(60)]).repeats_from() == inf


def test_clear_empties_it():
    trail = filled(range(100))
    trail.clear()
    assert (trail.steps, trail.values, trail.width, trail.repeats_from()) == ([], [], 1, inf)


def test_rule_1_a_bucket_holds_its_last_step_and_its_highest_value_too():
    low, high = BucketedSeries(min), BucketedSeries(max)
    for trail in (low, high):
        completes = [trail.add(step, float(step % 3), 1.0) for step in range(1, 128)]
        assert all(completes) and trail.width == 1
        assert trail.add(128, 2.0, 1.0)
        assert (trail.width, len(trail.steps)) == (2, 64)
        assert trail.steps == [float(step) for step in range(2, 129, 2)]
        assert not trail.add(129, 7.0, 9.0)
        assert trail.add(130, 5.0, 9.0)
        assert trail.steps[-2:] == [128, 130]
        assert trail.tops == [float(max(step % 3, (step - 1) % 3)) for step in range(2, 129, 2)] + [
            7.0
        ]
    pairs = [(step - 1, step) for step in range(2, 129, 2)]
    assert low.values == [float(min(a % 3, b % 3)) for a, b in pairs] + [5.0]
    assert high.values == [float(max(a % 3, b % 3)) for a, b in pairs] + [7.0]


def test_rule_1_each_bucket_begins_anew():
    trail = filled([5.0] * 128)
    for step, value in ((128, 9.0), (129, 8.0), (130, 3.0), (131, 4.0)):
        trail.add(step, value, 100.0)
    assert trail.values[-2:] == [8.0, 3.0]
    assert trail.tops[-2:] == [9.0, 4.0]


def tooth(*more: float, noise: float = 1.0, rise: int = 11, foot: float = 2.0) -> BucketedSeries:
    """Rise from 0 to 10 in steps 0 to 10, fall to `foot` at step 11, and continue with `more`."""
    trail = BucketedSeries(min)
    for step, value in enumerate([*map(float, range(rise)), foot, *more]):
        trail.add(step, value, noise)
    return trail


def test_rule_3_the_windows_of_a_repetition_begin_half_a_tooth_before_its_fall():
    assert tooth().repeats_from() == 11 - 11 / 2
    assert tooth().fell_at == 11


@pytest.mark.parametrize(("foot", "is_tooth"), [(4.9, True), (5.0, False), (5.1, False)])
def test_rule_3_a_tooth_ends_with_a_fall_by_more_than_half(foot, is_tooth):
    assert (tooth(foot=foot).repeats_from() < inf) == is_tooth


@pytest.mark.parametrize(("noise", "is_tooth"), [(7.9, True), (8.0, False), (9.0, False)])
def test_rule_3_a_fall_within_the_noise_is_none(noise, is_tooth):
    assert (tooth(noise=noise).repeats_from() < inf) == is_tooth


def test_rule_3_a_repetition_lasts_one_and_a_half_teeth():
    # the tooth took 11 steps, so until step 27.5
    assert tooth(*[2.0] * 16).repeats_from() == 5.5
    assert tooth(*[2.0] * 17).repeats_from() == inf


def test_rule_3_a_rise_is_a_repetition_up_to_the_top_of_the_last_tooth():
    assert tooth(3.0, 10.0).repeats_from() == 5.5
    assert tooth(3.0, 10.1).repeats_from() == inf


def test_rule_3_a_small_rise_belongs_to_the_fall_before_it():
    # 1.5 above the foot, less than a quarter of the 7.7 that are left to the top
    small = tooth(3.5, 2.3, noise=0.5)
    assert (small.fell_at, small.repeats_from()) == (13, 13 - 5.5)
    assert small.add(14, 10.0, 0.5) and small.repeats_from() == 13 - 5.5
    # 2.5 are a tooth of their own, of two steps
    own = tooth(4.5, 2.3, noise=0.5)
    assert (own.fell_at, own.repeats_from()) == (13, 12)
    assert own.add(14, 4.6, 0.5) and own.repeats_from() == inf


@pytest.mark.parametrize(("top", "repeats_from"), [(3.75, 13 - 5.5), (4.25, 12)])
def test_rule_3_a_quarter_of_the_last_tooth_is_a_tooth(top, repeats_from):
    # after the fall to 2, a quarter of what is left to the top is 2
    assert tooth(top, 2.0, noise=0.5).repeats_from() == repeats_from


def test_rule_3_after_a_repetition_any_rise_is_a_tooth():
    late = tooth(*[2.0] * 18, 3.5, 2.3, noise=0.5)
    # the first value of the small rise is at step 11, when the last tooth ended
    assert (late.fell_at, late.repeats_from()) == (31, 31 - 20 / 2)


def test_rule_3_a_tooth_is_measured_from_its_lowest_value():
    trail = BucketedSeries(min)
    for step, value in enumerate([3.0, 2.0, 1.0, 3.0, 11.0, 2.0]):
        trail.add(step, value, 100.0 if step < 3 else 1.0)
    assert trail.repeats_from() == 5 - (5 - 2) / 2


def test_an_empty_series_repeats_nothing():
    assert BucketedSeries(min).repeats_from() == inf
    assert BucketedSeries(min).fell_at == -inf
