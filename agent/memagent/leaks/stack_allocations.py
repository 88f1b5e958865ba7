"""What one call stack has allocated and still holds: the rows of a flame graph, of the device's allocator or of Python's own."""

from __future__ import annotations

from dataclasses import dataclass

from memagent.leaks.user_code import is_script

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
