"""A recorded or predicted sequence of allocations, run through the simulated allocator."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from memagent.errors import EstimateError
from memagent.estimator.allocator.caching import CachingAllocator, SimulatedOutOfMemory
from memagent.estimator.allocator.config import AllocatorConfig


class MemoryEvent(Protocol):
    """What a replay needs of an event. `storage` names the memory from its `alloc` to its `free`.

    Events may also carry `phase` and `step`, which divide the peaks, and `stream`.
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
class Mark:
    """The state right after the event `index`. Bytes."""

    index: int
    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class PhasePeak:
    """The highest state within one phase of one step, its beginning included. Bytes."""

    step: int
    phase: str
    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of a replay. Sizes in bytes.

    `ok` is False when the simulated device ran out: `failed_at` is then the event's index, `failure` the reason, and all
    numbers stand for the part before. `fragmentation` is what was reserved but not allocated when most was allocated.
    `stats` are torch's own counters, as `torch.cuda.memory_stats()` names them.
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
    timeline: tuple[Mark, ...]
    phases: tuple[PhasePeak, ...]
    stats: dict[str, int]

    def phase_peak(self, phase: str, step: int | None = None) -> PhasePeak | None:
        """The peak of a phase, in one step or over all of them; None when it never ran."""
        found = [one for one in self.phases if one.phase == phase and step in {None, one.step}]
        if not found:
            return None
        last = found[-1].step if step is None else step
        return PhasePeak(
            last, phase, max(one.allocated for one in found), max(one.reserved for one in found)
        )


def replay(
    events: Iterable[MemoryEvent],
    config: AllocatorConfig | None = None,
    total_bytes: int | None = None,
    *,
    outside_bytes: int = 0,
    marks: Collection[int] = (),
) -> Replay:
    """Run events through a fresh allocator, in order; never raises for want of memory, the answer tells.

    `total_bytes` is the device's memory (None: endless) and `outside_bytes` the part that others hold. `marks` are event
    indices to put on the timeline. Frees of storages never allocated raise EstimateError; empty ones take no memory.
    """
    run = _Run(CachingAllocator(config, total_bytes, outside_bytes=outside_bytes), frozenset(marks))
    failure = run.through(events)
    return run.answer(failure)


class _Run:
    """The state of one replay."""

    def __init__(self, allocator: CachingAllocator, marks: frozenset[int]) -> None:
        self.allocator = allocator
        self.marks = marks
        self.timeline: list[Mark] = []
        self.phases: dict[tuple[int, str], list[int]] = {}
        self.peak_allocated = self.peak_reserved = 0
        self.peak_allocated_at: int | None = None
        self.peak_reserved_at: int | None = None
        self.reserved_at_peak = 0
        self.failed_at: int | None = None

    def through(self, events: Iterable[MemoryEvent]) -> SimulatedOutOfMemory | None:
        """All events, until the device runs out."""
        allocator, marks = self.allocator, self.marks
        allocated, reserved = (
            allocator.stats.allocated_bytes.all,
            allocator.stats.reserved_bytes.all,
        )
        blocks: dict[int, int] = {}
        current: tuple[int, str] | None = None
        peaks = [0, 0]
        for event in events:
            phase = (getattr(event, "step", 0), getattr(event, "phase", ""))
            if phase != current:
                current = phase
                peaks = self.phases.setdefault(phase, [0, 0])
                self._raise(peaks, allocated.current, reserved.current)
            if event.kind == "free":
                self._free(event, blocks)
            elif event.size_bytes:
                try:
                    block = allocator.malloc(event.size_bytes, getattr(event, "stream", 0))
                except SimulatedOutOfMemory as failure:
                    self.failed_at = event.index
                    return failure
                self._keep(event, block, blocks)
                now, held = allocated.current, reserved.current
                if now > self.peak_allocated:
                    self.peak_allocated, self.peak_allocated_at, self.reserved_at_peak = (
                        now,
                        event.index,
                        held,
                    )
                if held > self.peak_reserved:
                    self.peak_reserved, self.peak_reserved_at = held, event.index
                self._raise(peaks, now, held)
            if event.index in marks:
                self.timeline.append(Mark(event.index, allocated.current, reserved.current))
        return None

    def _free(self, event: MemoryEvent, blocks: dict[int, int]) -> None:
        block = blocks.pop(event.storage, None)
        if block is not None:
            self.allocator.free(block)
        elif event.size_bytes:
            raise EstimateError(
                f"event {event.index} frees storage {event.storage}, which is not allocated"
            )

    @staticmethod
    def _keep(event: MemoryEvent, block: int, blocks: dict[int, int]) -> None:
        if event.storage in blocks:
            raise EstimateError(
                f"event {event.index} allocates storage {event.storage}, which is allocated already"
            )
        blocks[event.storage] = block

    @staticmethod
    def _raise(peaks: list[int], allocated: int, reserved: int) -> None:
        peaks[0] = max(peaks[0], allocated)
        peaks[1] = max(peaks[1], reserved)

    def answer(self, failure: SimulatedOutOfMemory | None) -> Replay:
        """What came of it."""
        stats = self.allocator.stats
        return Replay(
            ok=failure is None,
            peak_allocated=stats.allocated_bytes.all.peak,
            peak_reserved=stats.reserved_bytes.all.peak,
            peak_allocated_at=self.peak_allocated_at,
            peak_reserved_at=self.peak_reserved_at,
            peak_requested=stats.requested_bytes.all.peak,
            fragmentation=self.reserved_at_peak - self.peak_allocated,
            final_allocated=stats.allocated_bytes.all.current,
            final_reserved=stats.reserved_bytes.all.current,
            segments=stats.segment.all.current,
            peak_segments=stats.segment.all.peak,
            retries=stats.num_alloc_retries,
            failed_at=self.failed_at,
            failure=failure,
            timeline=tuple(self.timeline),
            phases=tuple(
                PhasePeak(step, phase, *peaks) for (step, phase), peaks in self.phases.items()
            ),
            stats=stats.as_dict(),
        )
