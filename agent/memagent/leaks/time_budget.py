"""How long a look may take: of the thread's own time, which a busy host does not use up, and on the wall, as training waits for it."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass
class TimeBudget:
    """Over when either is: `cpu_s` on `time.thread_time()`, `wall_s` on `time.perf_counter()`."""

    cpu_s: float
    wall_s: float
    was_hit: bool = False
    """Whether something has been given up for it."""

    @classmethod
    def after(cls, *, cpu_s: float, wall_s: float) -> TimeBudget:
        return cls(time.thread_time() + cpu_s, time.perf_counter() + wall_s)

    def is_over(self) -> bool:
        """To be asked by who gives up then."""
        is_over = not self.leaves(0.0) or time.thread_time() > self.cpu_s
        self.was_hit |= is_over
        return is_over

    def leaves(self, seconds: float) -> bool:
        """Whether training may wait so long yet, whatever the thread has used; to be asked by who gives up if not."""
        is_enough = time.perf_counter() + seconds <= self.wall_s
        self.was_hit |= not is_enough
        return is_enough
