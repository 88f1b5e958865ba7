"""Growth that is looked at in hindsight: what is unknown isn't growth."""

from __future__ import annotations

import pytest

from memagent_server.store.growth import GrowthSpan

EVERY_10 = range(0, 1001, 10)


@pytest.mark.parametrize(
    ("steps", "longest"),
    [
        (EVERY_10, 20),
        ([step for step in EVERY_10 if not 300 < step < 700], 400),
        ([step for step in EVERY_10 if step >= 500], 500),
        ([step for step in EVERY_10 if step <= 600], 400),
        ([500], 1000),
    ],
)
def test_steps_without_points_count_as_a_pause(steps, longest):
    growth = GrowthSpan(1, since_step=0, step=1000)
    assert growth.longest_pause([(step, 1.0 + step) for step in steps]) == pytest.approx(
        longest, abs=10
    )
