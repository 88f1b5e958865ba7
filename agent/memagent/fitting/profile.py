"""The bytes that each block of a traced step keeps, and the peak if some blocks run again.

The events of the last forward and backward are cut into windows at whose ends a block has been left
(its values wait for backward) or is entered again. A block that runs again doesn't keep its values
between the two, and needs what its forward needed when it is entered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from memagent.estimator.trace.events import MemoryEvent, Trace
from memagent.fitting.blocks import ModelBlock


@dataclass(frozen=True)
class BlockProfile:
    """One block in a step, in bytes.

    - saved_bytes: what it keeps for backward, without what it returned.
    - forward_bytes: its forward's own peak, what it keeps included.
    - operations: floating-point operations of its forward, and one for each byte that it allocates,
      so that no block is free.
    """

    block: ModelBlock
    saved_bytes: int
    forward_bytes: int
    operations: int


@dataclass(frozen=True)
class StepWindow:
    """A part of the step: its peak in bytes, and the blocks (by index) whose values wait."""

    peak_bytes: int
    waiting: frozenset[int]


@dataclass(frozen=True)
class StepProfile:
    """A step without recomputation.

    `entries` has, by block, the window that ends when backward enters it, with the bytes in use
    there in place of the peak. `operations` are those of the whole forward.
    """

    blocks: tuple[BlockProfile, ...]
    windows: tuple[StepWindow, ...]
    entries: tuple[StepWindow, ...]
    operations: int

    def peak_bytes(self, chosen: Iterable[int]) -> int:
        """Return the peak of the tensors if the blocks with these indices run again."""
        again = frozenset(chosen)
        peak = max(self._without(window, again) for window in self.windows)
        for index in again:
            block = self.blocks[index]
            level = self._without(self.entries[index], again)
            peak = max(peak, level + block.forward_bytes)
        return peak

    def share(self, chosen: Iterable[int]) -> float:
        """Return the operations that run again, by those of the whole step.

        A backward has twice the operations of its forward (Narayanan et al. 2021, appendix).
        """
        again = sum(self.blocks[index].operations for index in chosen)
        return again / (3 * self.operations) if self.operations else 0.0

    def _without(self, window: StepWindow, again: frozenset[int]) -> int:
        dropped = sum(self.blocks[index].saved_bytes for index in window.waiting & again)
        return window.peak_bytes - dropped


def saved_by_module(trace: Trace) -> dict[str, int]:
    """Return what each module itself keeps for backward, in bytes, by its path."""
    saved: dict[str, int] = {}
    for event in _saved(_FinalPass.of(trace).events).values():
        saved[event.module] = saved.get(event.module, 0) + event.size_bytes
    return saved


def step_profile(trace: Trace, blocks: Sequence[ModelBlock]) -> StepProfile:
    """Profile the blocks that keep values for backward; the others are left out."""
    last = _FinalPass.of(trace)
    profiles, spans = [], []
    for block in blocks:
        own = [event for event in last.events if block.holds(event.module)]
        saved = _saved(own, returned=frozenset(trace.outputs.get(block.output_path, ())))
        if saved:
            profiles.append(_block_profile(trace, block, own, saved))
            spans.append(last.waiting_span(own, frozenset(saved)))
    return StepProfile(
        blocks=tuple(profiles),
        windows=last.windows(spans),
        entries=tuple(last.entry(end, spans) for _, end in spans),
        operations=sum(trace.operations.values()) + _forward_bytes(last.events),
    )


@dataclass(frozen=True)
class _FinalPass:
    """The last forward and backward of a trace, and the bytes in use after each event."""

    events: tuple[MemoryEvent, ...]
    levels: tuple[int, ...]

    @classmethod
    def of(cls, trace: Trace) -> _FinalPass:
        events = trace.events
        start = max(
            (
                position
                for position, event in enumerate(events)
                if event.phase == "forward"
                and (position == 0 or events[position - 1].phase != "forward")
            ),
            default=0,
        )
        before = sum(map(_change, events[:start]))
        own = events[start:]
        return cls(own, tuple(accumulate(map(_change, own), initial=before))[1:])

    def waiting_span(self, own: Iterable[MemoryEvent], saved: frozenset[int]) -> tuple[int, int]:
        """Return the positions at which a block has been left, and is entered by backward."""
        # others may free what the block returned, or a cache, much later
        left_at = max(e.index for e in own if e.phase == "forward" and e.kind == "alloc")
        entered_at = min(
            event.index
            for event in self.events
            if event.kind == "free" and event.storage in saved and event.index > left_at
        )
        first = self.events[0].index
        return left_at - first, entered_at - first

    def windows(self, spans: Sequence[tuple[int, int]]) -> tuple[StepWindow, ...]:
        """Cut the pass at the ends of the spans."""
        ends = sorted({0, len(self.events), *(end for span in spans for end in span)})
        return tuple(
            StepWindow(max(self.levels[start : end + 1]), _waiting(start, end, spans))
            for start, end in pairwise(ends)
        )

    def entry(self, position: int, spans: Sequence[tuple[int, int]]) -> StepWindow:
        """Return the moment at which backward enters a block; its own values wait no more."""
        return StepWindow(self.levels[position], _waiting(position, position, spans))


def _change(event: MemoryEvent) -> int:
    return event.size_bytes if event.kind == "alloc" else -event.size_bytes


def _waiting(start: int, end: int, spans: Sequence[tuple[int, int]]) -> frozenset[int]:
    return frozenset(
        index for index, (left, entered) in enumerate(spans) if left <= start and end <= entered
    )


def _saved(
    events: Iterable[MemoryEvent], returned: frozenset[int] = frozenset()
) -> dict[int, MemoryEvent]:
    """Return the allocations of forward that live on after it, by storage."""
    saved: dict[int, MemoryEvent] = {}
    for event in events:
        if event.phase == "forward" and event.kind == "free":
            saved.pop(event.storage, None)
        elif event.phase == "forward" and event.storage not in returned:
            saved[event.storage] = event
    return saved


def _block_profile(
    trace: Trace, block: ModelBlock, own: Sequence[MemoryEvent], saved: Mapping[int, MemoryEvent]
) -> BlockProfile:
    forward = [event for event in own if event.phase == "forward"]
    operations = sum(count for path, count in trace.operations.items() if block.holds(path))
    return BlockProfile(
        block=block,
        saved_bytes=sum(event.size_bytes for event in saved.values()),
        forward_bytes=max(accumulate(map(_change, forward))),
        operations=operations + _forward_bytes(own),
    )


def _forward_bytes(events: Iterable[MemoryEvent]) -> int:
    """Return the bytes that forward allocates, whatever it frees."""
    return sum(e.size_bytes for e in events if e.kind == "alloc" and e.phase == "forward")
