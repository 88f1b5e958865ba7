"""Samples wait for their forecast while all is calm, for a second at most."""

from __future__ import annotations

import pytest

from memagent.forecast import Forecaster, feed_columns
from memagent.local_forecast.waiting_samples import MAX_WAIT_S, WaitingSamples

GIB, MIB = 2**30, 2**20


def block(first, *used, limit=64 * GIB):
    return {
        "step": list(range(first, first + len(used))),
        "allocated_bytes": list(used),
        "peak_allocated_bytes": list(used),
        "limit_bytes": [limit] * len(used),
    }


@pytest.fixture
def calm():
    """Return a calm forecaster, and samples whose last forecast was at 100 s."""
    forecaster, samples = Forecaster(64 * GIB), WaitingSamples()
    samples.add(block(0, *[GIB] * 20), forecaster, 100.0)
    assert not samples.may_wait(forecaster, 100.0), "there is no forecast yet"
    assert [one.level for one in feed_columns(forecaster, samples.take(100.0))][-1] == "ok"
    return forecaster, samples


def test_1_samples_wait_for_two_seconds_and_are_forecast_together(calm):
    forecaster, samples = calm
    samples.add(block(20, GIB, GIB), forecaster, 100.5)
    assert samples.may_wait(forecaster, 100.5)
    samples.add(block(22, GIB), forecaster, 100.0 + MAX_WAIT_S)
    assert not samples.may_wait(forecaster, 100.0 + MAX_WAIT_S)
    assert samples.take(101.0)["step"] == [20, 21, 22] and not samples


def test_1_samples_do_not_wait_unless_the_forecast_is_calm(calm):
    forecaster, samples = calm
    grown = block(20, *[GIB + 300 * MIB * step for step in range(120)])
    assert [one.level for one in feed_columns(forecaster, grown)][-1] != "ok"
    samples.add(block(140, 36 * GIB), forecaster, 100.2)
    assert not samples.may_wait(forecaster, 100.2)


@pytest.mark.parametrize(("rise", "waits"), [(GIB // 2, True), (GIB, False)])
def test_2_samples_wait_for_a_tenth_of_the_time_left_at_most(calm, rise, waits):
    forecaster, samples = calm
    samples.add(block(20, GIB, GIB + rise), forecaster, 100.2)
    assert samples.time_left_s == pytest.approx(63 * GIB / rise * 0.2)
    assert samples.may_wait(forecaster, 100.2) is waits


def test_2_samples_do_not_wait_after_a_change_of_the_limit(calm):
    forecaster, samples = calm
    samples.add(block(20, GIB, limit=2 * GIB), forecaster, 100.2)
    assert not samples.may_wait(forecaster, 100.2)


def test_samples_without_sizes_wait(calm):
    forecaster, samples = calm
    samples.add({"step": [20], "allocated_bytes": [None]}, forecaster, 100.2)
    assert samples.may_wait(forecaster, 100.2)
