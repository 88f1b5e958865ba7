"""Calibration: how wide intervals must be, and how often growth of a kind ends the run.

1. Intervals are widened until they hold (conformal).
2. The probability of an OOM is the share of such growth that ended the run: by what is known of it,
   falling with the distance (isotonic). Within a kind, the distance matters little.

Fitted by `python -m benchmarks.forecast.calibrate` to runs of programs that may be looked at. Half
of the programs are held out: tests/agent/forecast/test_calibration.py holds these figures on them.
"""

from __future__ import annotations

from math import inf
from typing import Literal

from memagent.forecast.predecessor import GrowthOutcome
from memagent.forecast.projection import Projection
from memagent.forecast.types import Cause

CORPUS = "48b89f840acc11b1"
"""First digits of the SHA-256 of the runs and programs that the figures come from."""
INTERVAL_SCALE = (2.12, 1.75)
"""Exponents of (earliest / expected) and (latest / expected) steps left with which 5 % of the first
pages are missed on either side: conformal, each program with the same weight."""
PREDECESSOR_INTERVAL = (0.85, 1.28)
"""Steps left at least and at most, over those until the predecessor's death: the same quantiles."""
SCALED_CAUSES: tuple[Cause, ...] = ("leak", "fragmentation", "other_processes")
"""Those with enough runs for a scale. The intervals of the others are as they were fitted."""
Evidence = Literal[
    "list",
    "buffer",
    "cache",
    "epoch",
    "leak",
    "host_memory",
    "input",
    "reserve",
    "planned",
    "epoch_end",
    "lived",
    "died",
]
"""Knowledge of the growth. The finder knows that nothing clears it (`list`), or that it ends by
itself: a `buffer` near the limit, a `cache` or an `epoch`'s values anywhere. `leak`: nothing is
known. `reserve`: free pieces, other processes. `planned`: it reaches the limit after the planned
end. `epoch_end`: after the epoch's end, which may free it."""
DEATHS: dict[Evidence, tuple[tuple[float, float], ...]] = {
    "list": ((0.5, 0.95), (1.0, 0.93), (3.0, 0.92), (inf, 0.91)),
    "buffer": ((3.0, 0.25), (inf, 0.18)),
    "cache": ((3.0, 0.37), (inf, 0.34)),
    "epoch": ((0.5, 0.42), (1.0, 0.4), (3.0, 0.4), (inf, 0.32)),
    "leak": ((1.0, 0.65), (3.0, 0.56), (inf, 0.53)),
    "host_memory": ((0.5, 0.73), (3.0, 0.7), (inf, 0.63)),
    "input": ((0.5, 0.36), (3.0, 0.34), (inf, 0.33)),
    "reserve": ((inf, 0.29),),
    "planned": ((2.0, 0.38), (4.0, 0.32), (10.0, 0.29), (inf, 0.26)),
    "epoch_end": ((inf, 0.08),),
    "lived": ((inf, 0.01),),
    "died": ((inf, 0.98),),
}
"""Share of growing runs that die: (up to this distance, share). The distance is that of the limit,
as a multiple of that from which the growth pages; of `planned`, of the planned end. Half of the
programs die, and the others end at 90 to 99.5 % of their limit. With fewer deaths, the odds fall in
proportion."""


def calibrated_interval(
    projection: Projection, outcome: GrowthOutcome | None = None
) -> tuple[float, float]:
    """Return the calibrated bounds of the steps left. outcome: that of the predecessor."""
    expected = projection.steps_left
    if outcome == "died":
        low, high = PREDECESSOR_INTERVAL
        return low * expected, high * expected
    earliest, latest = projection.steps_left_low, projection.steps_left_high
    if projection.cause not in SCALED_CAUSES or expected <= 0:
        return earliest, latest
    low, high = INTERVAL_SCALE
    return expected * (earliest / expected) ** low, expected * (latest / expected) ** high


def death_probability(evidence: Evidence, distance: float) -> float:
    """Return the calibrated probability that growth ends the run."""
    return next(share for most, share in DEATHS[evidence] if distance <= most)
