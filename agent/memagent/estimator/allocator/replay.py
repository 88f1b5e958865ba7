"""A sequence of allocations, recorded or predicted, run through the simulated allocator."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from memagent.errors import EstimateError
from memagent.estimator.allocator.caching import CachingAllocator, SimulatedOutOfMemory
from memagent.estimator.allocator.config import AllocatorConfig


class ReplayEvent(Protocol):
    """The fields that a replay reads. `storage` identifies memory from its `alloc` to its `free`.

    An event may also have `phase` and `step`, by which the peaks are divided, and `stream`.
    """

    @property
    def kind(self) -> Literal["alloc", "free"]: ...
    @property
    def storage(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def index(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """The state right after the event `index`, in bytes."""

    index: int
    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class StepPhasePeak:
    """The peaks within one phase of one step, its first moment included, in bytes."""

    step: int
    phase: str
    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay. Sizes are bytes.

    If the simulated device ran out, `ok` is False, `failed_at` is the event's index, `failure` the
    reason, and all numbers cover the part before. Memory that was reserved but not allocated, at
    the peak of allocated, is the `fragmentation`. The `stats` have torch's counters by the names of
    `torch.cuda.memory_stats()`.
    """

    ok: bool
    peak_allocated: int
    peak_reserved: int
    peak_allocated_at: int | None
    peak_reserved_at: int | None
    peak_requested: int
    fragmentation: int
    final_allocated: int
    final_reserved: int
    segments: int
    peak_segments: int
    retries: int
    failed_at: int | None
    failure: SimulatedOutOfMemory | None
    timeline: tuple[TimelinePoint, ...]
    phases: tuple[StepPhasePeak, ...]
    stats: dict[str, int]


def replay(
    events: Iterable[ReplayEvent],
    config: AllocatorConfig | None = None,
    total_bytes: int | None = None,
    *,
    outside_bytes: int = 0,
    marks: Collection[int] = (),
) -> Replay:
    """Run events through a new allocator, in order. Never raises when memory runs out: see `ok`.

    `total_bytes` is the device's memory (None: unlimited), of which others use `outside_bytes`. The
    timeline has the state after the events with the indices `marks`. Empty storages take no memory.
    Raises EstimateError for the free of a storage that isn't allocated.
    """
    allocator = CachingAllocator(config, total_bytes, outside_bytes=outside_bytes)
    stats = allocator.stats
    allocated, reserved = stats.allocated_bytes.all, stats.reserved_bytes.all
    wanted = frozenset(marks)
    blocks: dict[int, int] = {}
    timeline: list[TimelinePoint] = []
    phases: dict[tuple[int, str], list[int]] = {}
    phase: tuple[int, str] | None = None
    peaks = [0, 0]
    peak_allocated = peak_reserved = reserved_at_peak = 0
    peak_allocated_at: int | None = None
    peak_reserved_at: int | None = None
    failed_at: int | None = None
    failure: SimulatedOutOfMemory | None = None
    for event in events:
        new_phase = (getattr(event, "step", 0), getattr(event, "phase", ""))
        if new_phase != phase:
            phase = new_phase
            peaks = phases.setdefault(phase, [0, 0])
            _raise_peaks(peaks, allocated.current, reserved.current)
        if event.kind == "free":
            _free(allocator, event, blocks)
        elif event.size_bytes:
            try:
                _malloc(allocator, event, blocks)
            except SimulatedOutOfMemory as error:
                failed_at, failure = event.index, error
                break
            if allocated.current > peak_allocated:
                peak_allocated, peak_allocated_at = allocated.current, event.index
                reserved_at_peak = reserved.current
            if reserved.current > peak_reserved:
                peak_reserved, peak_reserved_at = reserved.current, event.index
            _raise_peaks(peaks, allocated.current, reserved.current)
        if event.index in wanted:
            timeline.append(TimelinePoint(event.index, allocated.current, reserved.current))
    return Replay(
        ok=failure is None,
        peak_allocated=allocated.peak,
        peak_reserved=reserved.peak,
        peak_allocated_at=peak_allocated_at,
        peak_reserved_at=peak_reserved_at,
        peak_requested=stats.requested_bytes.all.peak,
        fragmentation=reserved_at_peak - peak_allocated,
        final_allocated=allocated.current,
        final_reserved=reserved.current,
        segments=stats.segment.all.current,
        peak_segments=stats.segment.all.peak,
        retries=stats.num_alloc_retries,
        failed_at=failed_at,
        failure=failure,
        timeline=tuple(timeline),
        phases=tuple(StepPhasePeak(*key, *phase_peaks) for key, phase_peaks in phases.items()),
        stats=stats.as_dict(),
    )


def _malloc(allocator: CachingAllocator, event: ReplayEvent, blocks: dict[int, int]) -> None:
    if event.storage in blocks:
        raise EstimateError(
            f"event {event.index} allocates storage {event.storage}, which is already allocated"
        )
    blocks[event.storage] = allocator.malloc(event.size_bytes, getattr(event, "stream", 0))


def _free(allocator: CachingAllocator, event: ReplayEvent, blocks: dict[int, int]) -> None:
    block = blocks.pop(event.storage, None)
    if block is not None:
        allocator.free(block)
    elif event.size_bytes:
        raise EstimateError(
            f"event {event.index} frees storage {event.storage}, which is not allocated"
        )


def _raise_peaks(peaks: list[int], allocated: int, reserved: int) -> None:
    peaks[0] = max(peaks[0], allocated)
    peaks[1] = max(peaks[1], reserved)
