"""Collects garbage on the training thread, when a forecaster suspects a leak: what falls then was none.

1. The forecaster asks on a thread of ours and does not wait: the floor in the samples after the next step is the answer (rule 3 of
   `memagent.forecast.gc_check`).
2. It is done at the next step boundary, on the thread that trains, and never while a CUDA graph is captured there: freeing a tensor then
   would end the capture with an error. The boundary after serves as well.
3. The first one is free, for it stands against waking somebody up; further ones wait until all of them together are less than a
   thousandth of the run's time.
"""

from __future__ import annotations

import gc
import sys
import time

MOST_OF_RUN = 0.001


class GarbageCollectionRequest:
    """`ask` on any thread; `is_asked` is looked at after each step, and then `collect` called."""

    def __init__(self) -> None:
        self.is_asked = False
        self.collections = 0
        self._began_at = time.monotonic()
        self._spent_s = 0.0

    def ask(self) -> None:
        """A `GcProbe`: the answer comes with the samples."""
        self.is_asked = self._spent_s <= MOST_OF_RUN * (time.monotonic() - self._began_at)

    def collect(self) -> None:
        """On the thread that trains, between two steps."""
        if _is_capturing():
            return
        self.is_asked = False
        began_at = time.monotonic()
        gc.collect()
        self._spent_s += time.monotonic() - began_at
        self.collections += 1


def _is_capturing() -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    capturing: bool = torch.cuda.is_current_stream_capturing()
    return capturing
