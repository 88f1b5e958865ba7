"""Places where a script's host reads the device: there it may see zeros instead of values."""

from __future__ import annotations

import sys
import sysconfig
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_REPEATED_READS = 20_000
"""Reads at one line without an optimizer step in between: the script waits for a value."""
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
_PACKAGE = str(Path(__file__).resolve().parents[1])


@dataclass(frozen=True, order=True)
class Place:
    """A line of the script."""

    file: str
    line: int


class HostReads:
    """Counts reads by line; `on_waiting` is called if a line reads for ever."""

    def __init__(
        self, on_waiting: Callable[[Place], None], limit: int = MAX_REPEATED_READS
    ) -> None:
        self._on_waiting = on_waiting
        self._limit = limit
        self._counts: Counter[Place] = Counter()
        self._since_step: Counter[Place] = Counter()
        self._names: dict[Place, str] = {}

    def add(self, name: str) -> None:
        """Count a read by the operator `name`, at the line of the script that runs."""
        place = place_of(sys._getframe(1))
        if place is None:
            return
        self._counts[place] += 1
        self._since_step[place] += 1
        self._names.setdefault(place, name)
        if self._since_step[place] > self._limit:
            self._since_step.clear()
            self._on_waiting(place)

    def end_step(self) -> None:
        self._since_step.clear()

    def most_common(self, count: int) -> list[dict[str, Any]]:
        return [
            {
                "file": place.file,
                "line": place.line,
                "operator": self._names[place],
                "reads": number,
            }
            for place, number in self._counts.most_common(count)
        ]


def place_of(frame: Any) -> Place | None:
    """Return the innermost line that belongs to the script, or None if there is none."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_of_script(file):
            return Place(file, frame.f_lineno)
        frame = frame.f_back
    return None


def place_of_error(error: BaseException) -> Place | None:
    """Return the innermost line of the script in the traceback."""
    place, link = None, error.__traceback__
    while link is not None:
        file = link.tb_frame.f_code.co_filename
        if is_of_script(file):
            place = Place(file, link.tb_lineno)
        link = link.tb_next
    return place


def is_of_script(file: str) -> bool:
    """Return False for files of libraries, of memagent, and code without a file."""
    is_installed = "/site-packages/" in file or "/dist-packages/" in file  # of the user, too
    return not is_installed and not file.startswith((*_LIBRARIES, _PACKAGE, "<"))
