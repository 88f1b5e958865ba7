"""Trace of Python's allocations over a window, in the steps that its schedule chooses."""

from __future__ import annotations

import tracemalloc

from memagent.leaks.trace_pause import TracePause
from memagent.leaks.trace_schedule import TraceSchedule


class BlockTrace:
    """tracemalloc, unless the script uses it. Counts the traced steps of each half of a window."""

    def __init__(self, schedule: TraceSchedule | None = None) -> None:
        self.schedule = schedule or TraceSchedule()
        self.is_active = False
        """True while tracemalloc runs, perhaps paused."""
        self._is_paused = False
        self._untraced_steps = 0
        """Count since the half began."""

    def start(self) -> None:
        """Trace from now on, also the next step."""
        TracePause.start_tracing(self.schedule.frames)
        self.is_active = True

    def stop(self) -> None:
        """Stop, and forget what was traced."""
        if self.is_active:
            self.is_active = False
            self._is_paused = False
            TracePause.paused = {}
            tracemalloc.stop()

    def end_step(self, took_s: float | None) -> None:
        """Note a step and its processor time, and choose whether the next one is traced."""
        if not self.is_active:
            return
        frames = self.schedule.frames
        self.schedule.end_step(took_s, was_traced=not self._is_paused)
        self._untraced_steps += self._is_paused
        if self.schedule.is_too_slow:
            self.stop()
        elif self.schedule.frames != frames:
            self.stop()
            self.start()
            self._untraced_steps += 1  # its blocks are forgotten
        else:
            self._go_on(self.schedule.traces_next())

    def begin_half(self) -> None:
        """Trace the next step, the first one of another half."""
        self._untraced_steps = 0
        self.schedule.begin_half()
        if self.is_active:
            self._go_on(is_traced=True)

    def traced_steps(self, steps: int) -> int:
        """Return how many of so many steps since the half began were traced."""
        return max(1, steps - self._untraced_steps)

    def _go_on(self, is_traced: bool) -> None:
        if is_traced and self._is_paused:
            TracePause.resume()
            self._is_paused = False
        elif not is_traced and not self._is_paused:
            self._is_paused = TracePause.pause()
