"""The processor time that a search for changes may take, traces in their own processes included."""

from __future__ import annotations

import time
from collections.abc import Callable

from memagent.errors import EstimateError

TIMEOUT_S = 300.0
"""Seconds of processor time: a search takes 2 to 30 traces of 1 to 10 s."""
MIN_TRACE_S = 0.5
"""What is left for less than a small trace is nothing: a trace is aborted after as much."""


class BudgetSpentError(EstimateError):
    """The search has taken its processor time."""


class TraceBudget:
    """Counts the traces of a search, and what they and this process take of `seconds`.

    on_trace: called before each trace with its number, from 1, and the seconds that are left.
    """

    def __init__(
        self, seconds: float, on_trace: Callable[[int, float], None] | None = None
    ) -> None:
        self.seconds = seconds
        self.traces = 0
        self._on_trace = on_trace
        self._traced_s = 0.0
        self._began_s = time.process_time()

    @property
    def left_s(self) -> float:
        return self.seconds - self._traced_s - (time.process_time() - self._began_s)

    def begin_trace(self) -> float:
        """Return the seconds for the next trace. Raises BudgetSpentError if there are none."""
        left_s = self.left_s
        if left_s < MIN_TRACE_S and self.traces:
            raise BudgetSpentError(
                f"nothing fits for sure after {self.seconds:g} s of processor time and "
                f"{self.traces} traces: timeout_s or --timeout allows more, and fewer changes "
                "(allow) need less"
            )
        self.traces += 1
        if self._on_trace is not None:
            self._on_trace(self.traces, left_s)
        return max(MIN_TRACE_S, left_s)

    def add(self, processor_s: float) -> None:
        """Count what a trace has taken of this process."""
        self._traced_s += processor_s
