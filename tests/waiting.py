"""Wait for events: how long they take on a busy machine is not for a test to say."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 600.0
"""Less than a test's time limit, so that the test says what it waited for."""
_MAX_PAUSE_S = 0.05


def wait_until(condition: Callable[[], object], what: str | Callable[[], str] = "") -> None:
    """Return when `condition` holds. Fail with `what`, the event, if it never does."""
    until, pause = time.monotonic() + PATIENCE_S, 0.001
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"never happened: {what() if callable(what) else what}")
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_S)
