"""Growth of Python objects outside torch, by tracemalloc. On request only: it slows small steps.

A small step takes two to five times as long while tracemalloc runs.

1. `begin` starts tracing, a few frames per block. Earlier allocations aren't seen.
2. `middle` notes what each line holds: by then caches are filled and the loop is steady.
3. `end` suspects the containers that grew (`growing_containers`). If they explain less than half of
   the growth, it also suspects the lines of the script that hold more than in the middle.

Garbage is collected before each reading, since reference cycles that wait for it are no leak.
"""

from __future__ import annotations

import gc
import linecache
import tracemalloc
from collections import Counter

from memagent.leaks.detectors.base import Detector, StackAllocation, TimeBudget
from memagent.leaks.growing_containers import ContainerCensus, suspects_of_containers
from memagent.leaks.suspect import build_suspect
from memagent.leaks.user_code import is_own, is_script
from memagent.wire.messages import DiagnosisMethod, Suspect

FRAMES = 6
"""Frames traced per block."""
MIN_BYTES_PER_STEP = 1024
_MAX_SUSPECTS = 3

CodePosition = tuple[str, int]
"""File and line."""
TracedBlocks = dict[tuple[CodePosition, ...], tuple[int, int]]
"""Bytes and blocks by call stack, outermost position first."""


class HostMemoryDetector(Detector):
    """Traces over one window. Does nothing if the script already uses tracemalloc."""

    method: DiagnosisMethod = "host"

    def __init__(self) -> None:
        self._is_tracing = False
        self._middle_step = 0
        self._middle: TracedBlocks = {}
        self._containers = ContainerCensus()

    def begin(self, step: int) -> None:
        self._containers.begin(step)
        if not tracemalloc.is_tracing():
            tracemalloc.start(FRAMES)
            self._is_tracing = True

    def middle(self, step: int) -> None:
        if self._is_tracing:
            gc.collect()
            self._middle_step = step
            self._containers.middle(step)
            self._middle = _traced_blocks()

    def end(self, step: int, budget: TimeBudget) -> list[Suspect]:
        if not self._is_tracing or not self._middle_step or budget.is_over():
            return []
        gc.collect()
        last = _traced_blocks()
        self._stop()
        self.grown = growing_stacks(self._middle, last)
        steps = step - self._middle_step
        lines = growing_lines(bytes_by_line(self._middle), bytes_by_line(last), steps)
        return most_specific(suspects_of_containers(self._containers.end(step), budget), lines)

    def close(self) -> None:
        self._stop()
        self._middle_step = 0
        self._middle = {}
        self._containers = ContainerCensus()

    def _stop(self) -> None:
        if self._is_tracing:
            self._is_tracing = False
            tracemalloc.stop()


def growing_stacks(first: TracedBlocks, last: TracedBlocks) -> list[StackAllocation]:
    """Return the growth of each stack that passes through the script, most bytes first."""
    grown = []
    for positions, (size, blocks) in last.items():
        old_size, old_blocks = first.get(positions, (0, 0))
        stack = tuple((file, line, "") for file, line in positions)
        allocation = StackAllocation(stack, size - old_size, blocks - old_blocks)
        if allocation.size_bytes > 0 and allocation.script_frame is not None:
            grown.append(allocation)
    return sorted(grown, key=lambda allocation: -allocation.size_bytes)


def bytes_by_line(traced: TracedBlocks) -> Counter[CodePosition]:
    """Return bytes by the innermost line of the script."""
    sizes: Counter[CodePosition] = Counter()
    for positions, (size, _) in traced.items():
        line = next((position for position in reversed(positions) if is_script(position[0])), None)
        if line is not None:
            sizes[line] += size
    return sizes


def growing_lines(
    first: Counter[CodePosition], last: Counter[CodePosition], steps: int
) -> list[Suspect]:
    """Return the lines that hold more than before, most bytes first."""
    growth = last.copy()
    growth.subtract(first)
    suspects = []
    for (file, line), size in growth.most_common(_MAX_SUSPECTS):
        rate = size // max(1, steps)
        if rate >= MIN_BYTES_PER_STEP:
            holder = linecache.getline(file, line).strip()[:120] or "Python objects"
            suspects.append(build_suspect(file, line, None, holder, "host", rate, 0.6))
    return suspects


def most_specific(containers: list[Suspect], lines: list[Suspect]) -> list[Suspect]:
    """Return the containers alone if they explain most of what the lines allocate."""
    rate, total_rate = (
        sum(item.bytes_per_step or 0 for item in items) for items in (containers, lines)
    )
    return containers if 2 * rate >= total_rate else [*containers, *lines]


def _is_own_allocation(positions: tuple[CodePosition, ...]) -> bool:
    """Return True if memagent made it, called by the script or by a diagnosis: not a leak.

    Generated code, such as a named tuple's constructor, counts as its caller's.
    """
    for file, _ in reversed(positions):
        if is_own(file):
            return True
        if is_script(file) and not file.startswith("<"):
            return False
    return False


def _traced_blocks() -> TracedBlocks:
    sizes: Counter[tuple[CodePosition, ...]] = Counter()
    blocks: Counter[tuple[CodePosition, ...]] = Counter()
    for trace in tracemalloc.take_snapshot().traces:
        positions = tuple((frame.filename, frame.lineno) for frame in trace.traceback)
        if not _is_own_allocation(positions):
            sizes[positions] += trace.size
            blocks[positions] += 1
    return {positions: (size, blocks[positions]) for positions, size in sizes.items()}
