"""torch's CUDA caching allocator in pure Python: what would be reserved, and would it fit?

    from memagent.estimator.allocator import AllocatorConfig, CachingAllocator

    allocator = CachingAllocator(AllocatorConfig.parse("expandable_segments:True"), total_bytes=24 * 2**30)
    block = allocator.malloc(300 * 2**20)
    allocator.free(block)
    allocator.peak_reserved

`replay` runs a whole sequence of events, `score_history` checks the simulation against a recorded memory history.
Needs neither torch nor a GPU. The rules, their sources and what is simplified: docs/allocator.md.
"""

from memagent.estimator.allocator.caching import CachingAllocator, SimulatedOutOfMemory
from memagent.estimator.allocator.config import AllocatorConfig
from memagent.estimator.allocator.counters import AllocatorStats
from memagent.estimator.allocator.history import HistoryScore, history_events, score_history
from memagent.estimator.allocator.replay import Mark, MemoryEvent, PhasePeak, Replay, replay

__all__ = [
    "AllocatorConfig",
    "AllocatorStats",
    "CachingAllocator",
    "HistoryScore",
    "Mark",
    "MemoryEvent",
    "PhasePeak",
    "Replay",
    "SimulatedOutOfMemory",
    "history_events",
    "replay",
    "score_history",
]
