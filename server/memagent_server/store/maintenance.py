"""What the store does for itself while nobody asks: compact what came in, and once a day let go of what is old."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from memagent.units import DAY_S
from memagent_server.store.compaction import compact_some
from memagent_server.store.engine import Database
from memagent_server.store.retention import Limits, find_old, let_go

log = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
"""After a look that found nothing."""


class Maintenance:
    """A turn at a time; `clock` gives seconds since the epoch."""

    def __init__(
        self,
        database: Database,
        retention_days: int,
        rollup_days: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database, self._clock = database, clock
        self._retention_days, self._rollup_days = retention_days, rollup_days
        self._retained_at = self._idle_at = float("-inf")

    def turn(self) -> bool:
        """Returns whether there was anything to do. Raises what the database raises."""
        now = self._clock()
        if 0 <= now - self._idle_at < LOOK_EVERY_S:
            return False
        if now - self._retained_at >= DAY_S:
            self._retained_at = now
            self._retain(now)
        is_busy = compact_some(self._database, now)
        if not is_busy:
            self._idle_at = now
        return is_busy

    def _retain(self, now: float) -> None:
        limits = Limits(now - self._retention_days * DAY_S, now - self._rollup_days * DAY_S)
        with self._database.read() as session:
            found = find_old(session, limits, sizes=False)
        gone = sum([let_go(self._database, old, limits) for old in found])
        if gone:
            log.info("let go of samples older than %d or rollups older than %d days of %d runs",
                     self._retention_days, self._rollup_days, gone)  # fmt: skip
