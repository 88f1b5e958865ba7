"""Base of all detectors: when the finder calls them, how long they may take, what they report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from memagent.leaks.user_code import is_script
from memagent.wire.messages import DiagnosisMethod, Suspect

StackFrame = tuple[str, int, str]
"""File, line and function. The function is empty if it's unknown."""
CallStack = tuple[StackFrame, ...]
"""Outermost frame first."""


@dataclass(frozen=True)
class StackAllocation:
    """Live blocks allocated by one call stack. In a difference: how many more than before."""

    stack: CallStack
    size_bytes: int
    blocks: int

    @property
    def script_frame(self) -> StackFrame | None:
        """Return the innermost frame of the script, or None if all frames are a library's."""
        return next((frame for frame in reversed(self.stack) if is_script(frame[0])), None)


def frame_text(frame: StackFrame) -> str:
    """Return `function (file:line)` as on the wire, or `file:line` if the function is unknown."""
    file, line, function = frame
    return f"{function} ({file}:{line})" if function else f"{file}:{line}"


@dataclass
class TimeBudget:
    """Time limit of a diagnosis: CPU time of the thread, and wall time, since training waits.

    On a busy host the thread gets little CPU time, so the wall clock alone would end too early.
    """

    cpu_ends_s: float
    """Time by `time.thread_time()`."""
    wall_ends_s: float
    """Time by `time.perf_counter()`."""
    was_hit: bool = False
    """True once a caller has skipped work because of the limit."""

    @classmethod
    def after(cls, *, cpu_s: float, wall_s: float) -> TimeBudget:
        """Return a budget that starts now."""
        return cls(time.thread_time() + cpu_s, time.perf_counter() + wall_s)

    def is_over(self) -> bool:
        """Return True if the caller must stop."""
        is_over = not self.leaves(0.0) or time.thread_time() > self.cpu_ends_s
        self.was_hit |= is_over
        return is_over

    def leaves(self, wall_s: float) -> bool:
        """Return False if training can't wait `wall_s` longer, so the caller must skip its work."""
        is_enough = time.perf_counter() + wall_s <= self.wall_ends_s
        self.was_hit |= not is_enough
        return is_enough


class Detector:
    """One way to find growth over a window of steps.

    The finder calls these methods at step boundaries, on the training thread. Subclasses override
    those that they need.
    """

    method: DiagnosisMethod = "census"
    grown: Sequence[StackAllocation] = ()
    """Set by `end` if stacks are recorded: growth of each since the middle, most bytes first."""
    growth_bytes_per_step: int | None = None
    """Set by `end` if measured: growth of all memory in use, tensors or not."""

    def begin(self, step: int) -> None:
        """Start the window after `step`."""

    def middle(self, step: int) -> None:
        """Take a reading in the middle of the window."""

    def before_last(self, step: int) -> None:
        """Take a reading one step before the end."""

    def end(self, step: int, budget: TimeBudget) -> list[Suspect]:
        """Return the suspects that are found within `budget`."""
        return []

    def close(self) -> None:
        """Release everything. Always called, after `end` or instead of it."""
