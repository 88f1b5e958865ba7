"""The delay before a retry: doubled each time, spread by chance, and never above the maximum."""

from __future__ import annotations

import random

import pytest

from memagent.delivery.sender import retry_delay_s


def range_of(**options) -> tuple[float, float]:
    """Return the least and the greatest of many delays."""
    delays = [retry_delay_s(**options) for _ in range(2000)]
    return min(delays), max(delays)


@pytest.mark.parametrize(("failures", "most"), [(1, 3), (2, 6), (3, 12), (6, 96)])
def test_each_failure_doubles_the_delay(failures, most):
    least_delay, greatest_delay = range_of(failures=failures, first_s=3.0, max_s=1000.0)
    assert most / 2 <= least_delay < 0.51 * most
    assert 0.99 * most < greatest_delay <= most


def test_the_delay_has_a_maximum():
    least_delay, greatest_delay = range_of(failures=9, first_s=3.0, max_s=60.0)
    assert 30 <= least_delay < 30.6
    assert 59.4 < greatest_delay <= 60


def test_the_delay_stops_growing_after_thirty_doublings():
    least_delay, greatest_delay = range_of(failures=10_000, first_s=1.0, max_s=1e300)
    assert 2**29 <= least_delay < 1.02 * 2**29
    assert 0.99 * 2**30 < greatest_delay <= 2**30
    assert range_of(failures=31, first_s=1.0, max_s=1e300)[0] >= 2**29
    assert range_of(failures=30, first_s=1.0, max_s=1e300)[1] <= 2**29


def test_chance_only_adds_to_the_delay_that_the_server_asks_for():
    least_delay, greatest_delay = range_of(failures=4, first_s=3.0, max_s=60.0, retry_after_s=20.0)
    assert 20 <= least_delay < 20.1
    assert 24.9 < greatest_delay <= 25


def test_a_server_cannot_ask_for_more_than_the_maximum():
    assert range_of(failures=1, first_s=3.0, max_s=60.0, retry_after_s=900.0) == (60, 60)
    assert retry_delay_s(1, first_s=3.0, max_s=60.0, retry_after_s=0.0) == 0


def test_a_delay_leaves_the_random_state_of_the_script_unchanged():
    state = random.getstate()
    retry_delay_s(2, first_s=1.0, max_s=60.0)
    retry_delay_s(2, first_s=1.0, max_s=60.0, retry_after_s=1.0)
    assert random.getstate() == state
