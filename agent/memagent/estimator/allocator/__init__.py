"""Simulator of torch's CUDA caching allocator: how much would be reserved, and would it fit?

    from memagent.estimator.allocator import AllocatorConfig, CachingAllocator

    allocator = CachingAllocator(AllocatorConfig.parse("expandable_segments:True"), 24 * 2**30)
    block = allocator.malloc(300 * 2**20)
    allocator.free(block)
    allocator.peak_reserved

`replay` runs a whole sequence of events. Neither torch nor a GPU is needed. docs/allocator.md lists
the rules, their sources and the simplifications.
"""

from memagent.estimator.allocator.caching import CachingAllocator, SimulatedOutOfMemory
from memagent.estimator.allocator.config import AllocatorConfig
from memagent.estimator.allocator.counters import AllocatorStats
from memagent.estimator.allocator.replay import (
    Replay,
    ReplayEvent,
    StepPhasePeak,
    TimelinePoint,
    replay,
)

__all__ = [
    "AllocatorConfig",
    "AllocatorStats",
    "CachingAllocator",
    "Replay",
    "ReplayEvent",
    "SimulatedOutOfMemory",
    "StepPhasePeak",
    "TimelinePoint",
    "replay",
]
