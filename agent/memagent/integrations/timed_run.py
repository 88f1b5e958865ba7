"""Record a script that has no optimizer: a sample each second, in place of one after each step.

1. A thread waits some seconds for an optimizer. Then it starts a run without models, whose steps
   are seconds.
2. The first optimizer stops it. The run that attaches to it takes over the id (`start_run`).
3. A script that ends earlier gets a run when it ends, with the peaks of the whole process.

The leak finder doesn't run here: only the training thread knows when a step has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from memagent.diagnostics import ErrorGuard
from memagent.run import Run

START_AFTER_S = 10.0
PERIOD_S = 1.0
_STOP_DEADLINE_S = 5.0


class TimedRun:
    """`begin` before the script runs, `stop` as soon as it has an optimizer or has ended.

    `start` starts a run without models and optimizers, which has the peaks of the whole process.
    """

    def __init__(self, start: Callable[[], Run], guard: ErrorGuard) -> None:
        self._start = start
        self._guard = guard
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._record, name="memagent-timed-run", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no more samples. The run, if there is one, continues."""
        self._is_over.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP_DEADLINE_S)

    def record_end(self) -> None:
        """Start a run at the end of a script that had none."""
        with self._guard.section("recording the end"):
            self._start()

    def _record(self) -> None:
        if self._is_over.wait(START_AFTER_S):
            return
        with self._guard.section("recording by time"):
            run = self._start()
            while not self._is_over.wait(PERIOD_S) and run.status == "running":
                run.tick()
