"""Growth that comes in few jumps, as that of compiled graphs, caches and reports of an epoch: how big they are, and how little they say.

1. A jump is a change from bucket to bucket that stands above what the series falls by, and is a tenth of the largest at least.
2. StepGrowth matter where they make up half of the rise and a typical one (each weighted by its size) is A_JUMP of it or more.
3. What n jumps say of the pace is off by sqrt(v / n), where v is the relative variance of their sizes and of the gaps between them:
   0 for one report of each epoch, 2 for jumps at random. The ratio of two halves is off by twice that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

A_JUMP = 0.03


@dataclass(frozen=True)
class StepGrowth:
    """The size of a typical jump, and the error of a ratio of two halves' slopes that comes of their number. Zeros where there are none."""

    typical: float = 0.0
    error: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float], rise: float) -> StepGrowth:
        changes = [after - before for before, after in pairwise(values)]
        falls = [-change for change in changes if change < 0]
        noise = max(3 * sum(falls) / len(falls) if falls else 0.0, 0.1 * max(changes))
        at = [place for place, change in enumerate(changes) if change > noise]
        sizes = [changes[place] for place in at]
        total = sum(sizes)
        n = len(at)
        squares = sum(size * size for size in sizes)
        if n < 3 or total < rise / 2 or squares < A_JUMP * rise * total:
            return cls()
        gaps = [after - before for before, after in pairwise(at)]
        vary = (
            n * squares / total**2
            - 1
            + (n - 1) * sum(gap * gap for gap in gaps) / sum(gaps) ** 2
            - 1
        )
        return cls(squares / total, 2 * sqrt(max(0.0, vary) / n))
