"""How far long work has come, on one line of stderr that is written over; nothing where stderr is no terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from memagent.units import format_duration

Item = TypeVar("Item")
EVERY_S = 0.1
"""Drawing more often than people see would be work of its own."""
_CELLS = 24
_WORTH_GUESSING_S = 2.0


class Progress:
    """A context manager: the line is gone when it ends, however it ends."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr is not None and sys.stderr.isatty()
        self._began_at = time.monotonic()
        self._drawn_at = float("-inf")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.tell("")

    def tell(self, text: str) -> None:
        """Show `text`, or nothing with ""."""
        if self._is_shown:
            columns = shutil.get_terminal_size().columns
            sys.stderr.write(f"\r\033[K{text[: columns - 1]}")
            sys.stderr.flush()

    def advance(self, done: float, total: float, what: str) -> None:
        """Show a bar for `done` of `total`, and what is being done; not at every call."""
        now = time.monotonic()
        if now - self._drawn_at >= EVERY_S or done >= total:
            self._drawn_at = now
            self.tell(bar(done, total, what, elapsed_s=now - self._began_at))

    def over(self, items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
        """The items, with a bar that counts them; `what` follows the numbers, as in `3 of 10 runs`."""
        for number, item in enumerate(items):
            self.advance(number, total, f"{number + 1:,} of {total:,} {what}")
            yield item
        self.tell("")


def bar(done: float, total: float, what: str, *, elapsed_s: float = 0.0) -> str:
    """The line: how much of it is done, what, and how long the rest will take at this pace."""
    share = min(1.0, max(0.0, done / total)) if total > 0 else 1.0
    filled = round(_CELLS * share)
    line = f"[{'#' * filled}{'.' * (_CELLS - filled)}] {share:4.0%}  {what}"
    if elapsed_s > _WORTH_GUESSING_S and 0 < share < 1:
        line += f", {format_duration(elapsed_s * (1 - share) / share)} left"
    return line
