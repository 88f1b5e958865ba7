"""Whether memory creeps up, however slowly and however far the limit: reason enough to look once who holds it.

1. Of each block of steps the least reading counts: what comes and goes within steps is not in it.
2. Growth is suspected when several blocks in a row lie above the one before, each by a least amount, and by like amounts: chance's rises
   are of all sizes.
"""

from __future__ import annotations

from collections.abc import Iterable

BLOCK, IN_A_ROW = 16, 5
ALIKE = 4.0
LEAST_BYTES_PER_STEP = {"cuda": 32}
LEAST_ELSEWHERE_BYTES_PER_STEP = 16 * 2**10
"""A host's readings rise by themselves while allocators and caches warm up; an allocator's are exact."""


class SlowGrowthDetector:
    """One device's readings, step by step, in constant memory."""

    def __init__(self, kind: str) -> None:
        self._least = BLOCK * LEAST_BYTES_PER_STEP.get(kind, LEAST_ELSEWHERE_BYTES_PER_STEP)
        self._floor: int | None = None
        self._block_floor: int | None = None
        self._steps = 0
        self._rises: list[int] = []

    def observe(self, readings: Iterable[int | None]) -> bool:
        """Bytes in use at the ends of consecutive steps, None where unknown. True when growth is suspected, and then not again before it
        has gone on for as long."""
        seen = [self._add(reading) for reading in readings if reading is not None]
        return True in seen

    def _add(self, reading: int) -> bool:
        self._block_floor = (
            reading if self._block_floor is None else min(self._block_floor, reading)
        )
        self._steps += 1
        if self._steps < BLOCK:
            return False
        rise = self._block_floor - self._floor if self._floor is not None else 0
        self._rises = [*self._rises[1 - IN_A_ROW :], rise] if rise >= self._least else []
        self._floor, self._block_floor, self._steps = self._block_floor, None, 0
        if len(self._rises) < IN_A_ROW or max(self._rises) > ALIKE * min(self._rises):
            return False
        self._rises = []
        return True
