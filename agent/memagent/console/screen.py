"""Lines of what a process writes, as a terminal without a right edge would show them. Pure.

1. A line feed ends a line. After a carriage return or backspaces the next text replaces the line's:
   of a progress bar only its last state remains, also of several below each other.
2. Other escape sequences and control characters are removed.
3. Both streams share the numbers of lines, in the order in which lines begin.
4. The newest MAX_CONSOLE_SIZE are kept. A line has at most MAX_CONSOLE_LINE characters, beyond
   which its rest is dropped.
5. From the first line of a private key to its last every line is masked, at most _MAX_KEY_LINES.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from memagent.record.masking import MASK
from memagent.wire.console import LINE_OVERHEAD, MAX_CONSOLE_SIZE
from memagent.wire.messages import MAX_CONSOLE_LINE, ConsoleStream

_PIECE = re.compile(
    r"""
      (?P<text>[^\x00-\x08\x0a-\x1f\x7f]+)     # with tabs
    | (?P<end>\n)
    | (?P<start>[\r\b])
    | \x1b\[(?P<up>[0-9]{0,3})A
    | \x1b\[[0-?]*[ -/]*[@-~] | \x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)? | [\x00-\x1f\x7f]
    """,
    re.VERBOSE,
)
_MAX_READ_LINE = 2 * MAX_CONSOLE_LINE
"""A secret that the cut goes through is masked before it."""
_MAX_ROWS = 32
"""Lines that a cursor can move up: progress bars below each other."""
_MAX_KEY_LINES = 128
"""A key of 8,192 bits has 100. A text that only mentions the first line hides no more."""
_KEY = re.compile(r"-----(BEGIN|END) [A-Z ]*PRIVATE KEY-----")


@dataclass
class ScreenLine:
    """A line. `version` is that of the screen when it last changed."""

    number: int
    stream: ConsoleStream
    step: int = 0
    time_s: float = 0.0
    text: str = ""
    version: int = 0

    @property
    def size(self) -> int:
        return len(self.text) + LINE_OVERHEAD


@dataclass
class _Cursor:
    """The place that a stream writes to: an index of `rows`, its last lines, or their end."""

    rows: list[int] = field(default_factory=list)
    row: int = 0
    is_at_start: bool = False
    key_lines: int = 0
    """Lines that may still belong to a key."""


class Screen:
    """The newest lines by number, oldest first. `version` changes with any of them."""

    def __init__(self) -> None:
        self.lines: dict[int, ScreenLine] = {}
        self.version = 0
        self.next_number = 0
        self._size = 0
        self._cursors: dict[ConsoleStream, _Cursor] = {"stdout": _Cursor(), "stderr": _Cursor()}

    def write(self, stream: ConsoleStream, step: int, time_s: float, text: str) -> None:
        """Apply what was written at once to a stream."""
        cursor = self._cursors[stream]
        self.version += 1
        for piece in _PIECE.finditer(text):
            kind = piece.lastgroup
            if kind == "text":
                self._put(stream, cursor, step, time_s, piece["text"])
            elif kind == "start":
                cursor.is_at_start = True
            elif kind == "end":
                if cursor.row == len(cursor.rows):
                    self._put(stream, cursor, step, time_s, "")
                cursor.row += 1
                cursor.is_at_start = True
                cursor.key_lines = max(0, cursor.key_lines - 1)
            elif kind == "up":
                cursor.row = max(0, cursor.row - int(piece["up"] or 1))
        self._trim()

    def skip(self, lines: int) -> None:
        """Leave out the numbers of lines that were dropped before they got here."""
        if not lines:
            return
        self.next_number += lines
        for cursor in self._cursors.values():
            cursor.row = len(cursor.rows)
            cursor.is_at_start = True

    def _put(
        self, stream: ConsoleStream, cursor: _Cursor, step: int, time_s: float, text: str
    ) -> None:
        line = self._line_at(stream, cursor)
        before = line.size
        if cursor.is_at_start or not line.text:
            line.text = ""
            line.step = step
            line.time_s = time_s
        line.text = _without_key(cursor, line.text, text)[:_MAX_READ_LINE]
        line.version = self.version
        cursor.is_at_start = False
        self._size += line.size - before

    def _line_at(self, stream: ConsoleStream, cursor: _Cursor) -> ScreenLine:
        """Return the cursor's line, a new one if there is none or it was dropped.

        A progress bar that goes on after lines of the other stream goes on below them.
        """
        line = self.lines.get(cursor.rows[cursor.row]) if cursor.row < len(cursor.rows) else None
        if line is not None and not (cursor.is_at_start and self._is_covered(cursor, line)):
            return line
        line = self.lines[self.next_number] = ScreenLine(self.next_number, stream)
        self.next_number += 1
        self._size += line.size
        cursor.rows[cursor.row : cursor.row + 1] = [line.number]
        if len(cursor.rows) > _MAX_ROWS:
            del cursor.rows[0]
            cursor.row -= 1
        return line

    def _is_covered(self, cursor: _Cursor, line: ScreenLine) -> bool:
        is_above = any(number > line.number for number in cursor.rows[: cursor.row])
        return is_above or self.next_number - 1 not in cursor.rows

    def _trim(self) -> None:
        while self._size > MAX_CONSOLE_SIZE:
            number = next(iter(self.lines))
            self._size -= self.lines.pop(number).size


def _without_key(cursor: _Cursor, before: str, text: str) -> str:
    """Return a line that a text is appended to. The first mark of a key may come in parts."""
    whole = before + text
    marks = _KEY.findall(whole) if "PRIVATE KEY-----" in whole else []
    if not marks:
        return before + MASK if cursor.key_lines and text else whole
    cursor.key_lines = _MAX_KEY_LINES if marks[-1] == "BEGIN" else 0
    return MASK
