"""The last lines of a terminal, kept out of what scrolls. Each change is one write, so that it never mixes with somebody else's.

Control sequences: DECSTBM sets the lines that scroll (and moves the cursor home), DECSC and DECRC save and restore the cursor.
https://vt100.net/docs/vt510-rm/DECSTBM.html
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

_SAVE, _RESTORE = "\0337", "\0338"
_LEAST_ROWS, _LEAST_COLUMNS = 6, 30
"""Room that the script keeps; a smaller terminal gets no view."""


class StatusArea:
    """`height` lines of the terminal behind `fd`, from the first `draw` to `close`."""

    def __init__(self, fd: int, height: int) -> None:
        self._fd, self._height = fd, height
        self._size: os.terminal_size | None = None

    @property
    def columns(self) -> int | None:
        """Width to draw for; None where there is no room."""
        try:
            size = os.get_terminal_size(self._fd)
        except OSError:
            return None
        return (
            size.columns
            if size.lines >= self._height + _LEAST_ROWS and size.columns >= _LEAST_COLUMNS
            else None
        )

    def draw(self, lines: Sequence[str]) -> None:
        """Show these. The terminal may have another size than before."""
        size = os.get_terminal_size(self._fd)
        if size != self._size:
            self.close()
            self._begin(size)
        first = size.lines - self._height + 1
        drawn = "".join(
            f"\033[{first + row};1H\033[2K{line}\033[0m" for row, line in enumerate(lines)
        )
        self._write(f"{_SAVE}{drawn}{_RESTORE}")

    def close(self) -> None:
        """Everything scrolls again, and the lines are empty."""
        if self._size is None:
            return
        size, self._size = self._size, None
        self._write(f"{_SAVE}\033[r\033[{size.lines - self._height + 1};1H\033[J{_RESTORE}")

    def _begin(self, size: os.terminal_size) -> None:
        """Make room below the cursor, then keep it."""
        self._size = size
        room = "\n" * self._height + f"\033[{self._height}A"
        self._write(f"{room}{_SAVE}\033[1;{size.lines - self._height}r{_RESTORE}")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed: the run goes on
            os.write(self._fd, text.encode())
