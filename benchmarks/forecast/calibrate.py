"""Fit the forecaster's calibration: `python -m benchmarks.forecast.calibrate`.

Prints the figures of memagent/forecast/calibration.py. They come from the programs to tune on:
recorded on a GPU, rehearsed, and simulated. Each program has the same weight.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import log
from pathlib import Path

from benchmarks.forecast import gpu_recorded, mechanisms, programs, simulated
from benchmarks.forecast.baselines import memagent
from benchmarks.forecast.gpu_programs import GPU_PROGRAMS
from benchmarks.forecast.traces import Alarm, Trace
from memagent.forecast.calibration import INTERVAL_SCALE, SCALED_CAUSES
from memagent.forecast.types import GROWING

TUNED_ON, HELD_OUT = "tuned on", "held out"
EACH, SEED = 3, 7
MISSED_PER_SIDE = 0.05
Weighted = list[tuple[float, float]]
"""Values with their weights."""


def main() -> None:
    runs = list(corpus(TUNED_ON))
    alarms = [(run, alarm) for run in runs if run.trending and (alarm := memagent(run))]
    low, high = scales(alarms)
    print(f'CORPUS = "{digest()}"\nINTERVAL_SCALE = ({low:.2f}, {high:.2f})')
    shares = {kind: share for kind in GROWING if (share := share_that_dies(runs, kind)) is not None}
    print(f"SHARE_THAT_DIES = { ({kind: round(share, 2) for kind, share in shares.items()}) }")


def corpus(half: str) -> Iterator[Trace]:
    """Yield the runs of one half of the programs."""
    for title, runs in gpu_recorded.sets(GPU_PROGRAMS):
        if title.endswith(half):
            yield from runs
    for kinds in (programs.PROGRAMS, mechanisms.MECHANISMS):
        yield from simulated.traces(kinds.split()[half], EACH, SEED)


def digest() -> str:
    """Return the first digits of the hash of the recorded runs and of the simulated programs."""
    names = ("mechanisms.py", "programs.py", "simulated.py")
    sources = [Path(__file__).with_name(name) for name in names]
    content = hashlib.sha256()
    for file in (gpu_recorded.FILE, gpu_recorded.REHEARSED, *sources):
        content.update(file.read_bytes())
    return content.hexdigest()[:16]


def scales(alarms: Sequence[tuple[Trace, Alarm]]) -> tuple[float, float]:
    """Return the exponents with which intervals of first pages hold, 1 or more."""
    counts = Counter(run.family for run, _ in alarms)
    lows, highs = list[tuple[float, float]](), list[tuple[float, float]]()
    for run, alarm in alarms:
        left = (run.death or 0) - alarm.step
        expected = (alarm.eta_step or 0) - alarm.step
        # a page that says "now" has hardly an interval
        if min(left, expected) < 1 or alarm.cause not in SCALED_CAUSES:
            continue
        weight = 1 / counts[run.family]
        low, high = (alarm.eta_low or 0) - alarm.step, (alarm.eta_high or 0) - alarm.step
        lows.append(
            (_excess(expected / left, expected / max(low, 1e-9), INTERVAL_SCALE[0]), weight)
        )
        highs.append((_excess(left / expected, high / expected, INTERVAL_SCALE[1]), weight))
    return quantile(lows), quantile(highs)


def _excess(error: float, bound: float, scale: float) -> float:
    """Return the exponent with which a bound would just hold: without the scale it has now."""
    return log(error) / max(0.02, log(max(bound, 1.0)) / scale)


def quantile(values: Weighted) -> float:
    """Return the value that MISSED_PER_SIDE of the weight exceeds, at least 1."""
    ordered = sorted(values)
    most = (1 - MISSED_PER_SIDE) * sum(weight for _, weight in ordered)
    sums = accumulate(weight for _, weight in ordered)
    return max(
        1.0, next(value for (value, _), total in zip(ordered, sums, strict=True) if total >= most)
    )


def share_that_dies(runs: Iterable[Trace], grows: str) -> float | None:
    """Return the share of programs of this kind that die, None if there is none."""
    growing = [run for run in runs if run.grows == grows]
    counts = Counter(run.family for run in growing)
    if not counts:
        return None
    return sum(run.trending / counts[run.family] for run in growing) / len(counts)


if __name__ == "__main__":
    main()
