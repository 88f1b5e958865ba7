"""Base of all detectors: when the finder calls them, and what they report."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, cast

from memagent.leaks.census import Census, GroupCount
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.user_code import is_own, is_script, main_file
from memagent.wire.messages import DiagnosisMethod, Stack, Suspect

Result = TypeVar("Result")
Work: TypeAlias = Generator[None, None, Result]
"""Work in slices: it yields where training may go on, and then holds none of its objects."""
StackFrame = tuple[str, int, str]
"""File, line and function. The function is empty if it's unknown."""
CodePosition = tuple[str, int]
"""File and line."""
CallStack = tuple[StackFrame, ...]
"""Outermost frame first."""
_MAX_FRAMES = 256


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

    def to_message(self) -> Stack:
        """Return it for a snapshot, with its innermost frames if there are too many.

        Under `memagent run`, it begins with the script's.
        """
        frames = [frame_text(frame) for frame in _without_runner(self.stack)[-_MAX_FRAMES:]]
        return Stack(frames=frames, size_bytes=self.size_bytes, blocks=max(0, self.blocks))


def _without_runner(stack: CallStack) -> CallStack:
    """Return a stack from the main script on, if memagent runs it."""
    script = main_file()
    first = next((place for place, frame in enumerate(stack) if frame[0] == script), 0)
    return stack[first:] if any(is_own(frame[0]) for frame in stack[:first]) else stack


def script_position(positions: Sequence[CodePosition]) -> CodePosition | None:
    """Return the innermost position in the script, None if all are a library's."""
    return next((position for position in reversed(positions) if is_script(position[0])), None)


def frame_text(frame: StackFrame) -> str:
    """Return `function (file:line)` as on the wire, or `file:line` if the function is unknown."""
    file, line, function = frame
    return f"{function} ({file}:{line})" if function else f"{file}:{line}"


def finish(work: Work[Result]) -> Result:
    """Do all of the work at once, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast("Result", end.value)


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

    native_bytes_per_step: int | None = None
    """Set before the end if Python's own allocations are traced: growth of other allocated memory,
    if that is most of it. Tensors are a part of it."""

    are_tensors = False
    """Set by `end`: True if tensors are at least half of that growth."""

    host_tensors_bytes_per_step = 0
    """Set by `end`: growth of tensors on the host."""

    counts: tuple[GroupCount, ...] = ()
    """Set at the end: the groups of tensors that grew."""

    middle_census: Census | None = None
    """Set in the middle, if tensors are counted."""

    thread_s = 0.0
    """Processor time of other threads so far."""

    slow_down_s = 0.0
    """Processor time by which the window has made the script's own steps longer so far."""

    def prepare(self, step: int) -> None:
        """Get ready for a reading, one step before it: after `step`."""

    def begin(self, step: int) -> None:
        """Start the window after `step`."""

    def read_used_bytes(self) -> None:
        """Read the memory in use once all have begun, with what their readings keep."""

    def after_step(self, took_s: float | None = None) -> None:
        """Note the end of a step of the window, before a reading after it.

        took_s: its processor time in the training thread, None if unknown.
        """

    def middle(self, step: int) -> None:
        """Take a reading in the middle of the window."""

    def near_end(self, step: int) -> None:
        """Do a part of the work of `before_last`, after each of the few steps before that one."""

    def before_last(self, step: int) -> None:
        """Take a reading one step before the end."""

    def end(self, step: int, budget: TimeBudget) -> list[Suspect]:
        """Return the suspects that are found within `budget`."""
        return []

    def search(self, step: int, budget: TimeBudget) -> Work[list[Suspect]]:
        """Do the work of `end` in slices, of which the first takes all readings."""
        yield from ()
        return self.end(step, budget)

    def close(self) -> None:
        """Release everything. Always called, after `end` or instead of it."""
