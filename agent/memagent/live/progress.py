"""Progress of long work, on one line of stderr; nothing if stderr isn't a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from memagent.units import format_duration

Item = TypeVar("Item")
MIN_REDRAW_S = 0.1
"""Redrawing faster than people can see would only cost time."""
_CELLS = 24
_MIN_ELAPSED_S = 2.0
"""Elapsed time before the remaining time is estimated."""


class Progress:
    """Context manager that removes the line at the end, also after an error."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr is not None and sys.stderr.isatty()
        self._began_at = time.monotonic()
        self._drawn_at = float("-inf")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.show("")

    def show(self, text: str) -> None:
        """Replace the line by `text`."""
        if self._is_shown:
            columns = shutil.get_terminal_size().columns
            sys.stderr.write(f"\r\033[K{text[: columns - 1]}")
            sys.stderr.flush()

    def advance(self, done: float, total: float, label: str) -> None:
        """Show a bar for `done` of `total` and a label, at most every MIN_REDRAW_S."""
        now = time.monotonic()
        if now - self._drawn_at >= MIN_REDRAW_S or done >= total:
            self._drawn_at = now
            self.show(bar(done, total, label, elapsed_s=now - self._began_at))

    def over(self, items: Iterable[Item], total: int, noun: str) -> Iterator[Item]:
        """Yield the items and count them in a bar; `noun` is for the label `3 of 10 runs`."""
        for number, item in enumerate(items):
            self.advance(number, total, f"{number + 1:,} of {total:,} {noun}")
            yield item
        self.show("")


def bar(done: float, total: float, label: str, *, elapsed_s: float = 0.0) -> str:
    """Return the line: a bar, the share, the label, and the time left at this pace."""
    share = min(1.0, max(0.0, done / total)) if total > 0 else 1.0
    filled = round(_CELLS * share)
    line = f"[{'#' * filled}{'.' * (_CELLS - filled)}] {share:4.0%}  {label}"
    if elapsed_s > _MIN_ELAPSED_S and 0 < share < 1:
        line += f", {format_duration(elapsed_s * (1 - share) / share)} left"
    return line
