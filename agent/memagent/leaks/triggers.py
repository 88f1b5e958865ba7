"""When memory is worth a diagnosis, and by which method.

Slow growth in a device's readings, however far the limit is:

1. The minimum of each block of steps counts, so what comes and goes within a block doesn't. Long
   blocks show what grows at every fiftieth step, such as results of evaluations; the diagnosis of
   their growth takes a longer window.
2. Growth is suspected after several rising blocks in a row, each by a minimum amount, and by
   similar amounts: random rises vary in size.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

BLOCK_STEPS = 16
LONG_BLOCK_STEPS = 64
RISING_BLOCKS = 5
MAX_RISE_RATIO = 4.0
"""Largest rise over the smallest up to which rises count as similar."""
LONG_WINDOW_STEPS = 160
"""Window for growth at every fiftieth step: it contains three such steps."""
MIN_CUDA_BYTES_PER_STEP = 32
MIN_OTHER_BYTES_PER_STEP = 16 * 2**10
"""A host's readings rise while allocators and caches warm up; CUDA's allocator counts exactly."""


class Method(msgspec.Struct, frozen=True):
    """A way to diagnose. window: steps, None for the usual ones."""

    traces_host: bool = False
    window: int | None = None


HOST_METHODS = (Method(), Method(traces_host=True), Method(window=LONG_WINDOW_STEPS))
DEVICE_METHODS = (Method(), Method(window=LONG_WINDOW_STEPS))
"""One follows the other while no suspect was found."""


class SlowGrowthDetector:
    """Detects slow growth in one device's readings, in constant memory."""

    def __init__(self, device_kind: str, block_steps: int = BLOCK_STEPS) -> None:
        is_exact = device_kind == "cuda"
        self._block_steps = block_steps
        self._min_rise = block_steps * (
            MIN_CUDA_BYTES_PER_STEP if is_exact else MIN_OTHER_BYTES_PER_STEP
        )
        self._previous_floor: int | None = None
        self._floor: int | None = None
        self._steps = 0
        self._rises: list[int] = []

    def observe(self, readings: Iterable[int | None]) -> bool:
        """Return True when growth is suspected, then not again until it has lasted as long.

        readings: bytes in use at the ends of consecutive steps, None if unknown.
        """
        known = [reading for reading in readings if reading is not None]
        is_suspected = False
        while known:
            room = self._block_steps - self._steps
            is_suspected |= self._add(known[:room])
            known = known[room:]
        return is_suspected

    def _add(self, readings: list[int]) -> bool:
        """Add the readings of steps of one block."""
        floor = min(readings)
        self._floor = floor if self._floor is None else min(self._floor, floor)
        self._steps += len(readings)
        if self._steps < self._block_steps:
            return False
        rise = self._floor - self._previous_floor if self._previous_floor is not None else 0
        self._rises = [*self._rises[1 - RISING_BLOCKS :], rise] if rise >= self._min_rise else []
        self._previous_floor = self._floor
        self._floor = None
        self._steps = 0
        is_short = len(self._rises) < RISING_BLOCKS
        if is_short or max(self._rises) > MAX_RISE_RATIO * min(self._rises):
            return False
        self._rises = []
        return True


def slow_growth_detectors(device_kind: str) -> list[tuple[SlowGrowthDetector, int | None]]:
    """Return the detectors with the windows of the diagnoses that they request."""
    return [
        (SlowGrowthDetector(device_kind), None),
        (SlowGrowthDetector(device_kind, LONG_BLOCK_STEPS), LONG_WINDOW_STEPS),
    ]
