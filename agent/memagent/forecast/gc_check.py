"""Garbage check before a leak pages: is the growth only garbage that hasn't been collected yet?

Tensors in reference cycles stay until Python's collector runs. So the floor rises like a leak's and
falls back, in a saw tooth whose first tooth looks like a leak. A collection shows the difference.
Free pieces around garbage look like fragmentation, so its growth is checked in the same way.

The contract of `gc_probe`
1. It's called without arguments, from within `Forecaster.update`, when anybody would hear of a
   leak: never in a run without one. After that it's called again after a quarter of the steps that
   the growth has lasted, but at least MIN_INTERVAL_STEPS apart. One `gc.collect()` takes tens of
   milliseconds in a large process, which is cheaper than a false page.
2. It returns the device's allocated bytes after `gc.collect()`, read like `allocated_bytes`: at the
   end of a step, on the training thread. If half of the growth or more is gone, it was garbage:
   there is no page, and the floor's series starts again.
3. It returns None if the answer comes later: a forecaster on another thread, or one that's fed in
   batches, only *requests* a collection at the next step boundary. The page then waits PATIENCE_S
   (by the samples' times; PATIENCE_STEPS without times), but at most a quarter of the steps that
   are left. If the floor falls meanwhile, the trend ends and there is no page. A leak that is
   reported already keeps its level: an alert isn't over because it's checked again.
4. It must not raise.

A server can't collect in the training process. For a run whose agent requests collections itself,
it passes `gc_probe=later`. Both forecasters see the same samples and suspect the same; the agent
collects, and the server sees the floor fall.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

GcProbe = Callable[[], int | None]
GarbageVerdict = Literal["leak", "garbage", "pending"]

MIN_INTERVAL_STEPS = 20.0
"""Steps between two collections, at least."""
PATIENCE_S = 5.0
"""Seconds that a page waits for a collection."""
PATIENCE_STEPS = 20.0
"""The same if samples have no times."""
MAX_WAIT_RATIO = 0.25
"""Share of the steps left that a page may wait."""
GARBAGE_RATIO = 0.5
"""Share of the growth that a collection must free for the growth to count as garbage."""


def later() -> int | None:
    """Probe whose answer comes with the samples, since the agent collects."""
    return None


class GarbageCheck:
    """Calls `probe`, if there is one, and remembers the verdict."""

    __slots__ = ("_next_step", "_probe", "_verdict", "_wait_until")

    def __init__(self, probe: GcProbe | None) -> None:
        self._probe = probe
        self._verdict: GarbageVerdict = "leak"
        self._next_step = self._wait_until = float("-inf")

    def judge(
        self,
        step: int,
        *,
        floor: float,
        growth: float,
        span_steps: float,
        steps_left: float,
        step_s: float | None,
    ) -> GarbageVerdict:
        """Return what a leak is: it grew by `growth` bytes to `floor` in `span_steps` steps."""
        if self._probe is None:
            return "leak"
        if step >= self._next_step:
            interval = max(MIN_INTERVAL_STEPS, span_steps / 4)
            # before the probe, which may take long
            self._next_step = step + interval
            allocated = self._probe()
            self._verdict = "leak"
            self._wait_until = step
            if allocated is None:
                patience = max(3.0, PATIENCE_S / step_s) if step_s else PATIENCE_STEPS
                self._wait_until = step + min(patience, MAX_WAIT_RATIO * steps_left)
                self._next_step = self._wait_until + interval
            elif floor - allocated >= GARBAGE_RATIO * growth:
                self._verdict = "garbage"
        return "pending" if step < self._wait_until else self._verdict
