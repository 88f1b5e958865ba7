"""Before a leak pages: is it garbage that merely was not collected yet?

Tensors in reference cycles stay until Python's collector runs, so the floor climbs like a leak's and falls back: a saw tooth. Its
first tooth can't be told from a leak by looking. It can be by asking: collect now, and read the floor again.

The contract of `gc_probe`
1. It is called without arguments, from within `Forecaster.update`, when a leak would page. A training loop without a leak never
   calls it; else it is asked again after a quarter of the steps that the growth was watched, and never within ASK_EVERY steps. One
   `gc.collect()` (tens of milliseconds for a large process) stands against one page.
2. It returns the device's allocated bytes after `gc.collect()`, read where `allocated_bytes` is read: at the end of a step, on the
   thread that trains. What fell by half of the growth or more was garbage: no page, and the floor is watched anew from here.
3. It returns None where the answer comes later: a forecaster that runs on another thread, or is fed in batches, only *asks* for a
   collection at the next step boundary. The page then waits PATIENCE_S (by the samples' times; PATIENCE_STEPS where they have
   none), but never more than a quarter of the steps that are left. If the floor falls meanwhile, the fall ends the trend and
   nobody is paged; if not, the page comes.
4. It must not raise.

A server can't collect in the training process. It passes `gc_probe=later` for a run whose agent asks by itself: both forecasters see
the same samples and come to the same suspicion; the agent collects, the floor in the samples falls, and the server sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

GcProbe = Callable[[], int | None]
Verdict = Literal["leak", "garbage", "asked"]

ASK_EVERY = 20.0
PATIENCE_S, PATIENCE_STEPS = 5.0, 20.0
MOST_OF_WHAT_IS_LEFT = 0.25
GARBAGE = 0.5
"""Share of the growth that must fall for all of it to be called garbage."""


def later() -> int | None:
    """A probe whose answer comes with the samples: somebody else collects."""
    return None


class GarbageCheck:
    """Asks `probe`, where given, and remembers what it said."""

    __slots__ = ("_ask_at", "_probe", "_verdict", "_wait_until")

    def __init__(self, probe: GcProbe | None) -> None:
        self._probe = probe
        self._verdict: Verdict = "leak"
        self._ask_at = self._wait_until = float("-inf")

    def judge(
        self,
        step: int,
        *,
        floor: float,
        grown: float,
        watched: float,
        left: float,
        step_s: float | None,
    ) -> Verdict:
        """What a leak that grew by `grown` bytes to `floor` in `watched` steps, and has `left` to go, is known to be."""
        if self._probe is None:
            return "leak"
        if step >= self._ask_at:
            self._ask_at = step + max(ASK_EVERY, watched / 4)
            answer = self._probe()
            self._verdict = (
                "leak" if answer is None or floor - answer < GARBAGE * grown else "garbage"
            )
            patience = max(3.0, PATIENCE_S / step_s) if step_s else PATIENCE_STEPS
            self._wait_until = (
                step if answer is not None else step + min(patience, MOST_OF_WHAT_IS_LEFT * left)
            )
        return "asked" if step < self._wait_until else self._verdict
