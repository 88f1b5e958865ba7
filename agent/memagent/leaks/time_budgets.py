"""Processor time of diagnoses: what one may use, at once and in all, and what all may together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass


class TimeBudget:
    """Processor time of one diagnosis: in all, and in the slice that runs at this step boundary.

    `thread_clock` returns the processor time of the calling thread. Time on the wall doesn't count:
    on a busy host it passes while the thread waits for a core.
    """

    def __init__(
        self, max_s: float = math.inf, thread_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self.was_hit = False
        """True once a caller has skipped work because of the limit."""
        self._max_s = max_s
        self._thread_clock = thread_clock
        self._earlier_s = 0.0
        self._slice_s = math.inf
        self._slice_started_s: float | None = thread_clock()

    def allow(self, seconds: float) -> None:
        """Limit what follows to this much more time."""
        self._max_s = self.used_s() + seconds

    def begin_slice(self, seconds: float = math.inf) -> None:
        """Start a slice of this length. The thread may be another one than before."""
        self._slice_s = seconds
        self._slice_started_s = self._thread_clock()

    def end_slice(self) -> None:
        """Count the slice. What the thread does until the next one is training."""
        self._earlier_s = self.used_s()
        self._slice_started_s = None

    def used_s(self) -> float:
        """Return the processor time of all slices so far."""
        return self._earlier_s + self._slice_used_s()

    def spend(self, seconds: float) -> None:
        """Count processor time of another thread."""
        self._earlier_s += seconds

    @property
    def is_sliced(self) -> bool:
        """Return True if training goes on between slices."""
        return self._slice_s < math.inf

    def is_slice_over(self) -> bool:
        """Return True if training must go on: the caller continues at a later step boundary."""
        return self._slice_used_s() >= self._slice_s

    def is_over(self) -> bool:
        """Return True if the caller must stop for good."""
        is_over = self.used_s() > self._max_s
        self.was_hit |= is_over
        return is_over

    def _slice_used_s(self) -> float:
        if self._slice_started_s is None:
            return 0.0
        return self._thread_clock() - self._slice_started_s


@dataclass
class Budget:
    """Processor time spent on diagnoses, as a share of the run's time.

    allowance_s: what may be spent beyond it, since a short run is worth a diagnosis, too.
    """

    share: float = 0.005
    allowance_s: float = 0.0
    spent_s: float = 0.0

    def allows(self, elapsed_s: float, advance_s: float = 0.0) -> bool:
        """Return True if work may begin or go on `elapsed_s` after the run began.

        advance_s: how far it may be ahead of the share and the allowance.
        """
        return self.spent_s <= self.allowance_s + advance_s + self.share * elapsed_s

    def rest_s(self, elapsed_s: float) -> float:
        """Return what may still be spent, 0 if it's spent."""
        return max(0.0, self.allowance_s + self.share * elapsed_s - self.spent_s)

    def spend(self, seconds: float) -> None:
        self.spent_s += seconds
