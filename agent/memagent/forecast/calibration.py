"""Calibration: how wide intervals must be, and how often growth of a kind ends the run.

Fitted by `python -m benchmarks.forecast.calibrate` to runs of programs that may be looked at. Half
of the programs are held out: tests/agent/forecast/test_calibration.py holds these figures on them.
"""

from __future__ import annotations

from memagent.forecast.projection import Projection
from memagent.forecast.types import Cause, Growing

CORPUS = "3089d45a0131a9b9"
"""First digits of the SHA-256 of the runs and programs that the figures come from."""
INTERVAL_SCALE = (2.12, 1.09)
"""Exponents of (earliest / expected) and (latest / expected) steps left with which 5 % of the first
pages are missed on either side: conformal, each program with the same weight."""
SCALED_CAUSES: tuple[Cause, ...] = ("leak", "fragmentation", "other_processes")
"""Those with enough runs for a scale. The intervals of the others are as they were fitted."""
SHARE_THAT_DIES: dict[Growing, float] = {"list": 0.96, "buffer": 0.27, "cache": 0.25, "epoch": 0.2}
"""Share of growing runs that die, by what keeps the memory, if half of all do and the others end at
90 to 99.5 % of their limit. It hardly depends on how near the limit is."""


def calibrated_interval(projection: Projection) -> tuple[float, float]:
    """Return the calibrated bounds of the steps left."""
    expected = projection.steps_left
    earliest, latest = projection.steps_left_low, projection.steps_left_high
    if projection.cause not in SCALED_CAUSES or expected <= 0:
        return earliest, latest
    low, high = INTERVAL_SCALE
    return expected * (earliest / expected) ** low, expected * (latest / expected) ** high


def share_that_dies(grows: Growing | None) -> float:
    """Return the factor on the probability that growth goes on to the limit."""
    return SHARE_THAT_DIES.get(grows or "unknown", 1.0)
