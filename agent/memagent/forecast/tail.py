"""The chance that one batch is too large: heavy-tailed sizes are a question for extreme values, not for a trend.

1. The logarithms of what training steps take above their floor are summed up by mean and variance: lengths of documents, images and
   graphs are close to lognormal.
2. Where they vary at all and their largest stands out as it should (that of evenly spread sizes does not), the chance of one step is
   what the normal distribution leaves above the room, with the width that an estimate from so many values deserves.
3. Sizes that are cut off show: the largest comes again and again. Then nothing larger is expected.
4. That of n steps is 1 - (1 - p)^n, drawn in from certainty, since sizes are only nearly lognormal and nearly independent, and the
   nearer to even the fewer were seen.
"""

from __future__ import annotations

from math import erfc, expm1, log, log1p, sqrt

FEWEST = 4
LEAST_SPREAD = 0.12
STANDS_OUT = 0.6
"""Share of the distance from the mean that the largest of so many normal values reaches, sqrt(2 ln n) standard deviations."""
SAME, CUT_OFF = 0.01, 4
"""Values within this share of the largest are the same; so many of them are a cut."""
BASE, WEIGHT = 0.5, 0.42
EVEN, UNDECIDED, ENOUGH = 0.5, 0.3, 30
"""The drawing in, by the reliability table in docs/forecast.md; what is said before it shows whether there is a tail; and from how many
values on it does."""


class Tail:
    """`add` each value; `chance` is that of one of the next steps exceeding `room`. Values of zero or less are no sizes."""

    __slots__ = ("_largest", "_mean", "_seen", "_squares", "_ties")

    def __init__(self) -> None:
        self._seen = self._ties = 0
        self._mean = self._squares = 0.0
        self._largest = 0.0

    def add(self, value: float) -> None:
        if value <= 0:
            return
        self._seen += 1
        logarithm = log(value)
        off = logarithm - self._mean
        self._mean += off / self._seen
        self._squares += off * (logarithm - self._mean)
        if value > self._largest * (1 + SAME):
            self._largest, self._ties = value, 1
        elif value > self._largest * (1 - SAME):
            self._ties += 1

    def chance(self, room: float, steps: float) -> float:
        """Probability that a value of the next `steps` is larger than `room`; 0 where there is no tail to speak of."""
        if self._seen < FEWEST or steps < 1 or self._ties >= CUT_OFF:
            return 0.0
        spread = sqrt(self._squares / (self._seen - 1))
        if spread < LEAST_SPREAD:
            return 0.0
        undecided = (
            log(self._largest) - self._mean < STANDS_OUT * sqrt(2 * log(self._seen)) * spread
        )
        if undecided and self._seen >= ENOUGH:
            return 0.0
        any_of_them = self._any_of(steps, room, spread)
        believed = self._seen / (self._seen + ENOUGH)
        told = UNDECIDED if undecided else EVEN + (BASE + WEIGHT * any_of_them - EVEN) * believed
        return told * min(1.0, 10 * any_of_them)

    def _any_of(self, steps: float, room: float, spread: float) -> float:
        """Chance that one of so many lognormal values is larger than `room`."""
        if room <= 0:
            return 1.0
        level = (log(room) - self._mean) / spread
        level /= sqrt(1 + (3 + level * level / 2) / self._seen)
        one = min(0.5 * erfc(level / sqrt(2)), 0.999)
        return -expm1(steps * log1p(-one))
