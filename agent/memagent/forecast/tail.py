"""Tail risk: the probability that one batch is too large.

Heavy-tailed sizes are a matter of extreme values, not of trends.

1. Sum up the logarithms of what training steps need above their floor, by mean and variance. The
   lengths of documents, images and graphs are close to lognormal.
2. If they vary at all, and their largest is as extreme as a tail's (that of evenly spread sizes
   isn't), the probability for one step is the normal distribution's above the room. Its width
   accounts for the number of values seen.
3. Sizes with a maximum show it: the largest comes again and again. Then nothing larger is expected.
4. The probability for n steps is 1 - (1 - p)^n, shrunk towards one half: sizes are only nearly
   lognormal and nearly independent. Fewer values shrink it more.
"""

from __future__ import annotations

from math import erfc, expm1, log, log1p, sqrt

MIN_VALUES = 4
"""Values needed to estimate a spread."""
MIN_SPREAD = 0.12
"""Standard deviation of the logarithms below which sizes don't vary."""
MIN_EXTREMENESS = 0.6
"""Distance of the largest from the mean, over the expected one: sqrt(2 ln n) deviations."""
TIE_TOLERANCE = 0.01
"""Values within this share of the largest are ties."""
MAX_TIES = 4
"""Ties from which sizes have a maximum."""
# Shrinking, fitted to the shares of a generator's runs that died (docs/forecast.md).
BASE_PROBABILITY, PROBABILITY_WEIGHT = 0.5, 0.42
"""Line from the lognormal's probability to the share that died."""
PRIOR_PROBABILITY = 0.5
"""Expected without any value."""
UNDECIDED_PROBABILITY = 0.3
"""Reported until the values show whether they have a tail."""
ENOUGH_VALUES = 30
"""Values from which they show it."""
CERTAIN_VALUES = 100
"""Values that weigh as much as the prior probability."""


class TailRisk:
    """Running statistics of sizes in constant memory. Zero and negative sizes are ignored."""

    __slots__ = ("_count", "_largest", "_mean", "_squares", "_ties")

    def __init__(self) -> None:
        self._count = self._ties = 0
        self._mean = self._squares = 0.0
        self._largest = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Add a value that came `count` times."""
        if value <= 0:
            return
        # Welford's update of mean and sum of squared deviations.
        self._count += count
        logarithm = log(value)
        deviation = logarithm - self._mean
        self._mean += count * deviation / self._count
        self._squares += count * deviation * (logarithm - self._mean)
        if value > self._largest * (1 + TIE_TOLERANCE):
            self._largest = value
            self._ties = count
        elif value > self._largest * (1 - TIE_TOLERANCE):
            self._ties += count

    def probability(self, room: float, steps: float) -> float:
        """Return the probability that one of the next `steps` exceeds `room`, 0 without a tail."""
        if self._count < MIN_VALUES or steps < 1 or self._ties >= MAX_TIES:
            return 0.0
        spread = sqrt(self._squares / (self._count - 1))
        if spread < MIN_SPREAD:
            return 0.0
        expected = MIN_EXTREMENESS * sqrt(2 * log(self._count)) * spread
        is_undecided = log(self._largest) - self._mean < expected
        if is_undecided and self._count >= ENOUGH_VALUES:
            return 0.0
        raw = self._raw_probability(room, steps, spread)
        weight = self._count / (self._count + CERTAIN_VALUES)
        fitted = BASE_PROBABILITY + PROBABILITY_WEIGHT * raw
        shrunk = PRIOR_PROBABILITY + (fitted - PRIOR_PROBABILITY) * weight
        return (UNDECIDED_PROBABILITY if is_undecided else shrunk) * min(1.0, 10 * raw)

    def _raw_probability(self, room: float, steps: float, spread: float) -> float:
        """Return the probability that one of `steps` lognormal values exceeds `room`."""
        if room <= 0:
            return 1.0
        level = (log(room) - self._mean) / spread
        level /= sqrt(1 + (3 + level * level / 2) / self._count)  # estimated mean and spread
        # less than 1, whose logarithm below is minus infinity
        single = min(0.5 * erfc(level / sqrt(2)), 0.999)
        # 1 - (1 - p) ** steps, exact for a tiny p
        return -expm1(steps * log1p(-single))
