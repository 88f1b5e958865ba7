"""Timestamps as people and scripts read them."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import lru_cache

_LAST = 253_402_300_799.0
"""The end of the year 9999: ISO 8601 knows no later time, and a broken clock must not break a page."""


@lru_cache(
    maxsize=8192
)  # lists are asked for again and again, and their times are most of what they are made of
def iso(at: float | None) -> str | None:
    """`2026-01-01T00:00:00.000Z` of UTC seconds since the Unix epoch; None stays None."""
    if at is None:
        return None
    moment = datetime.fromtimestamp(min(max(at, 0.0), _LAST), timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
