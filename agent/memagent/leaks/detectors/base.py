"""One way to look for growth over some steps. The finder calls its methods at step boundaries, on the training thread.

What one call stack has allocated and still holds: the rows of a flame graph, of the device's allocator or of Python's own.

How long a look may take: of the thread's own time, which a busy host does not use up, and on the wall, as training waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from memagent.leaks.user_code import is_script
from memagent.wire.messages import DiagnosisMethod, Suspect


class Detector:
    """Looks at the beginning, in the middle, one step before the end, and at the end; does nothing where a method is not its own."""

    method: DiagnosisMethod = "census"
    grown: Sequence[StackAllocation] = ()
    """After the end: what each stack holds more than in the middle, most bytes first; only where stacks are recorded."""
    growth_bytes_per_step: int | None = None
    """After the end: by how much memory in use grew, tensors or not; only where that is measured."""

    def begin(self, step: int) -> None:
        """The window opens after `step`."""

    def middle(self, step: int) -> None:
        """Half of it is over."""

    def before(self, step: int) -> None:
        """The next step will be the last."""

    def end(self, step: int, deadline: TimeBudget) -> list[Suspect]:
        """What grew, and who is to blame, as far as it is found in time."""
        return []

    def close(self) -> None:
        """Always called after the end, or instead of it: let go of everything, switch everything off."""


Frame = tuple[str, int, str]
"""file, line, function; the function is empty where it is unknown"""
Stack = tuple[Frame, ...]
"""outermost first"""


@dataclass(frozen=True)
class StackAllocation:
    """Live blocks that one stack has allocated; in a difference, how many more there are than before."""

    stack: Stack
    size_bytes: int
    blocks: int

    @property
    def place(self) -> Frame | None:
        """The innermost frame of the script; None where all are a library's."""
        return next((frame for frame in reversed(self.stack) if is_script(frame[0])), None)


def frame_text(frame: Frame) -> str:
    """`function (file:line)`, as on the wire; `file:line` where the function is unknown."""
    file, line, function = frame
    return f"{function} ({file}:{line})" if function else f"{file}:{line}"


@dataclass
class TimeBudget:
    """Over when either is: `cpu_s` on `time.thread_time()`, `wall_s` on `time.perf_counter()`."""

    cpu_s: float
    wall_s: float
    was_hit: bool = False
    """Whether something has been given up for it."""

    @classmethod
    def after(cls, *, cpu_s: float, wall_s: float) -> TimeBudget:
        return cls(time.thread_time() + cpu_s, time.perf_counter() + wall_s)

    def is_over(self) -> bool:
        """To be asked by who gives up then."""
        is_over = not self.leaves(0.0) or time.thread_time() > self.cpu_s
        self.was_hit |= is_over
        return is_over

    def leaves(self, seconds: float) -> bool:
        """Whether training may wait so long yet, whatever the thread has used; to be asked by who gives up if not."""
        is_enough = time.perf_counter() + seconds <= self.wall_s
        self.was_hit |= not is_enough
        return is_enough
