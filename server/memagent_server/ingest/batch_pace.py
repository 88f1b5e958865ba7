"""How often agents should send, so that a web process keeps to BUSY_SHARE of a core.

1. The interval of calm ranks follows the share that the process took, by at most a factor of 2
   at a time. The next change waits until all agents have got the last one.
2. A rank at risk sends every second.
3. The intervals vary, so that agents don't send at once after an outage.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from flask import Flask

from memagent.wire.messages import BATCH_EVERY_S, MAX_BATCH_EVERY_S, Risk

EXTENSION = "memagent_batch_pace"
BUSY_SHARE = 0.5
"""Share of a core that a web process takes before it requests fewer batches."""
ADJUST_S = 10.0
JITTER = 0.2


class BatchPace:
    """The interval that a web process requests."""

    def __init__(
        self,
        steady: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.process_time,
    ) -> None:
        self._steady = steady
        self._processor = processor
        self._lock = threading.Lock()
        self._since = (steady(), processor())
        self.interval_s = BATCH_EVERY_S

    def interval_of(self, risk: Risk | None) -> float:
        """Return the interval for a rank."""
        self._adjust()
        if self.interval_s <= BATCH_EVERY_S or (risk is not None and risk.level != "ok"):
            return BATCH_EVERY_S
        varied_s = self.interval_s * random.uniform(1 - JITTER, 1)  # noqa: S311 - no secret  # nosec B311
        return round(max(BATCH_EVERY_S, varied_s), 1)

    def _adjust(self) -> None:
        at, used_s = self._since
        elapsed_s = self._steady() - at
        if elapsed_s < max(ADJUST_S, 2 * self.interval_s) or not self._lock.acquire(blocking=False):
            return
        try:
            share = (self._processor() - used_s) / elapsed_s
            factor = min(max(share / BUSY_SHARE, 0.5), 2.0)
            self.interval_s = min(max(factor * self.interval_s, BATCH_EVERY_S), MAX_BATCH_EVERY_S)
            self._since = (self._steady(), self._processor())
        finally:
            self._lock.release()


def pace_of(app: Flask) -> BatchPace:
    """Return the pace of this process."""
    pace: BatchPace | None = app.extensions.get(EXTENSION)
    return pace or app.extensions.setdefault(EXTENSION, BatchPace())
