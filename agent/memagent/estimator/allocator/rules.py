"""The sizes torch's CUDA caching allocator works with, as pure functions of bytes.

Source: pytorch `c10/cuda/CUDACachingAllocator.cpp` (`round_size`, `roundup_power2_next_division`, `get_allocation_size`,
`should_split`) and the constants of `c10/core/AllocatorConfig.h`; which versions were read is in docs/allocator.md.
"""

from __future__ import annotations

from memagent.estimator.allocator.config import AllocatorConfig

MIN_BLOCK = 512  # every size is rounded up to a multiple of this
SMALL_SIZE = 2**20  # requests up to here come from the small pool
SMALL_SEGMENT = 2 * 2**20  # what the small pool asks the device for
MIN_LARGE_ALLOC = 10 * 2**20  # requests from here on get a segment of their own size
ROUND_LARGE = 2 * 2**20  # ... rounded up to a multiple of this


def round_size(size: int, config: AllocatorConfig) -> int:
    """Bytes of the block that a request of `size` bytes looks for (`round_size`)."""
    if size < MIN_BLOCK:
        return MIN_BLOCK
    divisions = config.divisions_for(size)
    if divisions > 1 and size > MIN_BLOCK * divisions:
        return next_division(size, divisions)
    return (size + MIN_BLOCK - 1) // MIN_BLOCK * MIN_BLOCK


def next_division(size: int, divisions: int) -> int:
    """`size` rounded up to the next of `divisions` equal steps between two powers of two: 1200 in 4 steps is 1280."""
    floor = 1 << (size.bit_length() - 1)
    if size == floor:
        return size
    step = floor >> (divisions.bit_length() - 1)
    if step == 0:
        return floor << 1
    return (size + step - 1) // step * step


def segment_size(rounded: int, config: AllocatorConfig) -> int:
    """Bytes asked from the device when no cached block fits a rounded size (`get_allocation_size`)."""
    if rounded <= SMALL_SIZE:
        return SMALL_SEGMENT
    if rounded < MIN_LARGE_ALLOC:
        return config.large_segment_bytes
    return (rounded + ROUND_LARGE - 1) // ROUND_LARGE * ROUND_LARGE


def page_size(*, small: bool, config: AllocatorConfig) -> int:
    """Bytes of one physical page of an expandable segment."""
    return SMALL_SEGMENT if small else config.large_segment_bytes
