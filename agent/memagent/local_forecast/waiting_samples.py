"""Samples that wait for the next forecast: every two seconds are enough while nothing grows.

1. With cold caches, a forecast takes 0.3 ms, of one sample or of many that are alike. So samples
   wait for up to MAX_WAIT_S, unless the newest forecast isn't calm: then there is one at each tick
   of the collector.
2. They don't wait if MAX_WAIT_S is more than a tenth of the time left, at the pace at which memory
   has risen since the last forecast.
"""

from __future__ import annotations

from math import inf

from memagent.delivery.collector import MAX_SHARE_OF_TIME_LEFT
from memagent.delivery.partial_batch import StreamColumns, join_columns
from memagent.forecast import Forecaster
from memagent.wire.columns import Value

MAX_WAIT_S = 2.0
_SIZES = ("allocated_bytes", "peak_allocated_bytes", "device_used_bytes", "host_rss_bytes")
_LIMITS = ("limit_bytes", "host_limit_bytes")


class WaitingSamples:
    """The samples of one device since its last forecast."""

    def __init__(self) -> None:
        self.time_left_s = inf
        """Seconds until memory runs out at the pace of its last rise; infinite without one."""
        self._blocks: list[StreamColumns] = []
        self._taken_at = -inf
        self._before: dict[str, Value] = {}
        """The last known sizes and limits that have been forecast."""

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def add(self, columns: StreamColumns, forecaster: Forecaster, now: float) -> None:
        """Add samples that were taken until `now`, in seconds."""
        self._blocks.append(columns)
        rise = self._rise(columns)
        headroom = forecaster.limit_bytes - (forecaster.newest.used_bytes or 0)
        self.time_left_s = headroom * (now - self._taken_at) / rise if rise > 0 else inf

    def may_wait(self, forecaster: Forecaster, now: float) -> bool:
        """Return True if the next forecast may be later than `now`."""
        if not forecaster.is_calm or now - self._taken_at >= MAX_WAIT_S:
            return False
        newest = self._blocks[-1]
        has_moved = any(
            values[-1] not in (None, self._before.get(name))
            for name in _LIMITS
            if (values := newest.get(name))
        )
        return not has_moved and MAX_SHARE_OF_TIME_LEFT * self.time_left_s >= MAX_WAIT_S

    def take(self, now: float) -> StreamColumns:
        """Return all samples as one block, since they are forecast `now`."""
        columns = join_columns(self._blocks)
        self._blocks = []
        self._taken_at = now
        known = ((name, columns[name][-1]) for name in (*_SIZES, *_LIMITS) if name in columns)
        self._before.update((name, value) for name, value in known if value is not None)
        return columns

    def _rise(self, columns: StreamColumns) -> float:
        """Return by how many bytes the samples exceed the last one that was forecast."""
        rises = (
            max(value for value in columns[name] if value is not None) - size
            for name, size in self._before.items()
            if size is not None and name in _SIZES and columns.get(name, (None,))[-1] is not None
        )
        return max(rises, default=0)
