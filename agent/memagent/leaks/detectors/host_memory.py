"""Growth of Python objects outside torch: a window of tracemalloc, on demand, as it slows a small step two to five times.

1. It begins to trace with a few frames a block; what was allocated before is not seen.
2. In the middle, caches have filled and the loop has its steady state: what each line holds is noted.
3. In the end, lines of the script that hold more than in the middle are suspects.
"""

from __future__ import annotations

import linecache
import tracemalloc
from collections import Counter

from memagent.leaks.detectors.base import Detector, StackAllocation, TimeBudget
from memagent.leaks.suspect import build_suspect
from memagent.leaks.user_code import is_own, is_script
from memagent.wire.messages import DiagnosisMethod, Suspect

FRAMES = 6
LEAST_BYTES_PER_STEP = 1024
_MOST = 3

Place = tuple[str, int]
Traced = dict[tuple[Place, ...], tuple[int, int]]
"""Bytes and blocks by call stack, outermost place first."""


class HostMemoryDetector(Detector):
    """The window. A script that traces by itself is left alone."""

    method: DiagnosisMethod = "host"

    def __init__(self) -> None:
        self._is_ours = False
        self._marked_at = 0
        self._middle: Traced = {}

    def begin(self, step: int) -> None:
        if not tracemalloc.is_tracing():
            tracemalloc.start(FRAMES)
            self._is_ours = True

    def middle(self, step: int) -> None:
        if self._is_ours:
            self._marked_at, self._middle = step, _traced()

    def end(self, step: int, deadline: TimeBudget) -> list[Suspect]:
        if not self._is_ours or not self._marked_at or deadline.is_over():
            return []
        last = _traced()
        self._stop()
        self.grown = growing_stacks(self._middle, last)
        return growing_lines(held_by_line(self._middle), held_by_line(last), step - self._marked_at)

    def close(self) -> None:
        self._stop()
        self._marked_at, self._middle = 0, {}

    def _stop(self) -> None:
        if self._is_ours:
            self._is_ours = False
            tracemalloc.stop()


def growing_stacks(first: Traced, last: Traced) -> list[StackAllocation]:
    """What each stack that passes through the script holds more than before, most bytes first."""
    more = []
    for places, (size, blocks) in last.items():
        old_size, old_blocks = first.get(places, (0, 0))
        held = StackAllocation(
            tuple((file, line, "") for file, line in places), size - old_size, blocks - old_blocks
        )
        if held.size_bytes > 0 and held.place is not None:
            more.append(held)
    return sorted(more, key=lambda held: -held.size_bytes)


def held_by_line(traced: Traced) -> Counter[Place]:
    """Bytes by the innermost line of the script."""
    held: Counter[Place] = Counter()
    for places, (size, _) in traced.items():
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
        build_suspect(
            file,
            line,
            "",
            linecache.getline(file, line).strip()[:120] or "Python objects",
            "host",
            rate,
            0.6,
        )
        for rate, (file, line) in found
        if rate >= LEAST_BYTES_PER_STEP
    ]


def _is_ours(places: tuple[Place, ...]) -> bool:
    """Whether memagent itself made it: what the script calls of ours, and what looks for the leak, is no leak of the script.

    Generated code (a named tuple's constructor is one) is whose who calls it.
    """
    for file, _ in reversed(places):
        if is_own(file):
            return True
        if is_script(file) and not file.startswith("<"):
            return False
    return False


def _traced() -> Traced:
    sizes: Counter[tuple[Place, ...]] = Counter()
    blocks: Counter[tuple[Place, ...]] = Counter()
    for trace in tracemalloc.take_snapshot().traces:
        places = tuple((frame.filename, frame.lineno) for frame in trace.traceback)
        if _is_ours(places):
            continue
        sizes[places] += trace.size
        blocks[places] += 1
    return {places: (size, blocks[places]) for places, size in sizes.items()}
