"""A series in bounded memory, and the teeth that it detects."""

from __future__ import annotations

from math import inf

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
