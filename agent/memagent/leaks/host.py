"""Growth of Python objects outside torch: a window of tracemalloc, on demand, as it slows a small step two to five times.

1. It begins to trace with a few frames a block; what was allocated before is not seen.
2. In the middle, caches have filled and the loop has its steady state: what each line holds is noted.
3. In the end, lines of the script that hold more than in the middle are suspects.
"""

from __future__ import annotations

import linecache
import tracemalloc
from collections import Counter
from collections.abc import Iterable

from memagent.leaks.scopes import is_script
from memagent.leaks.suspect import Suspect
from memagent.leaks.window import Window

FRAMES = 6
LEAST_BYTES_PER_STEP = 1024
_MOST = 3

Place = tuple[str, int]


class HostWindow(Window):
    """The window. A script that traces by itself is left alone."""

    def __init__(self) -> None:
        self._is_ours = False
        self._marked_at = 0
        self._held: Counter[Place] = Counter()

    def begin(self, step: int) -> None:
        if not tracemalloc.is_tracing():
            tracemalloc.start(FRAMES)
            self._is_ours = True

    def middle(self, step: int) -> None:
        if self._is_ours:
            self._marked_at, self._held = step, held_by_line(_traces())

    def end(self, step: int) -> list[Suspect]:
        if not self._is_ours or not self._marked_at:
            return []
        return growing_lines(self._held, held_by_line(_traces()), step - self._marked_at)

    def close(self) -> None:
        if self._is_ours:
            self._is_ours, self._marked_at = False, 0
            self._held = Counter()
            tracemalloc.stop()


def held_by_line(traces: Iterable[tuple[int, tuple[Place, ...]]]) -> Counter[Place]:
    """Bytes by the innermost line of the script. Traces are sizes with their places, outermost first."""
    held: Counter[Place] = Counter()
    for size, places in traces:
        place = next((place for place in reversed(places) if is_script(place[0])), None)
        if place is not None:
            held[place] += size
    return held


def growing_lines(first: Counter[Place], last: Counter[Place], steps: int) -> list[Suspect]:
    """The lines that hold more than before, most bytes first."""
    last = last.copy()
    last.subtract(first)
    found = [(size // max(1, steps), place) for place, size in last.most_common(_MOST)]
    return [
        Suspect(file, line, "", linecache.getline(file, line).strip()[:120] or "Python objects", "host", rate, 0.6)
        for rate, (file, line) in found
        if rate >= LEAST_BYTES_PER_STEP
    ]


def _traces() -> Iterable[tuple[int, tuple[Place, ...]]]:
    snapshot = tracemalloc.take_snapshot()
    for trace in snapshot.traces:
        yield trace.size, tuple((frame.filename, frame.lineno) for frame in trace.traceback)
