"""How long a look may take: of the thread's own time, which a busy host does not use up, and on the wall, as training waits for it."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass
class Deadline:
    """Over when either is: `cpu_s` on `time.thread_time()`, `wall_s` on `time.perf_counter()`."""

    cpu_s: float
    wall_s: float
    was_hit: bool = False
    """Whether something has been given up for it."""

    @classmethod
    def after(cls, *, cpu_s: float, wall_s: float) -> Deadline:
        return cls(time.thread_time() + cpu_s, time.perf_counter() + wall_s)

    def is_over(self) -> bool:
        """To be asked by who gives up then."""
        return not self.has(0.0)

    def has(self, seconds: float) -> bool:
        """Whether there is still time for what takes so long; to be asked by who leaves it if not."""
        enough = time.thread_time() + seconds <= self.cpu_s and time.perf_counter() + seconds <= self.wall_s
        self.was_hit |= not enough
        return enough
