"""The bytes that each block of a traced step keeps, and the peak if some blocks run again.

The events of the last forward and backward are cut into windows at whose ends a block has been left
(its values wait for backward) or is entered again. A block that runs again doesn't keep its values
between the two, holds its arguments there, and needs what its forward needed when it is entered
again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

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
class HeldArgument:
    """A tensor that is free, but held if one of these blocks (by index) runs again."""

    size_bytes: int
    blocks: frozenset[int]


@dataclass(frozen=True)
class StepWindow:
    """A part of the step: its peak in bytes, the blocks (by index) whose values wait, and their
    arguments that are free.
    """

    peak_bytes: int
    waiting: frozenset[int]
    arguments: tuple[HeldArgument, ...] = ()


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
        peak = max(self._level(window, again) for window in self.windows)
        for index in again:
            block = self.blocks[index]
            level = self._level(self.entries[index], again)
            peak = max(peak, level + block.forward_bytes)
        return peak

    def share(self, chosen: Iterable[int]) -> float:
        """Return the operations that run again, by those of the whole step.

        A backward has twice the operations of its forward (Narayanan et al. 2021, appendix).
        """
        again = sum(self.blocks[index].operations for index in chosen)
        return again / (3 * self.operations) if self.operations else 0.0

    def _level(self, window: StepWindow, again: frozenset[int]) -> int:
        dropped = sum(self.blocks[index].saved_bytes for index in window.waiting & again)
        held_bytes = sum(item.size_bytes for item in window.arguments if item.blocks & again)
        return window.peak_bytes - dropped + held_bytes


def saved_by_module(trace: Trace) -> dict[str, int]:
    """Return what each module itself keeps for backward, in bytes, by its path."""
    saved: dict[str, int] = {}
    for event in _saved(_FinalPass.of(trace).events).values():
        saved[event.module] = saved.get(event.module, 0) + event.size_bytes
    return saved


def step_profile(trace: Trace, blocks: Sequence[ModelBlock]) -> StepProfile:
    """Profile the blocks whose values backward releases; the others are left out."""
    last = _FinalPass.of(trace)
    profiles: list[BlockProfile] = []
    spans: list[_Span] = []
    holds: list[_Hold] = []
    for block in blocks:
        own = [event for event in last.events if block.holds(event.module)]
        saved = _saved(own, returned=frozenset(trace.outputs.get(block.output_path, ())))
        span = last.waiting_span(own, frozenset(saved)) if saved else None
        if span is not None:
            arguments = trace.arguments.get(block.input_path, ())
            holds += last.holds(arguments, len(profiles), span)
            profiles.append(_block_profile(trace, block, own, saved))
            spans.append(span)
    return StepProfile(
        blocks=tuple(profiles),
        windows=last.windows(spans, holds),
        entries=tuple(last.window(s.entered_at, s.entered_at, spans, holds) for s in spans),
        operations=sum(trace.operations.values()) + _forward_bytes(last.events),
    )


class _Span(NamedTuple):
    """The positions at which forward leaves a block, backward enters it, and backward leaves it."""

    left_at: int
    entered_at: int
    ended_at: int


class _Hold(NamedTuple):
    """An argument that the block with this index holds from its release to the block's end."""

    storage: int
    size_bytes: int
    block: int
    freed_at: int
    ended_at: int


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

    def waiting_span(self, own: Sequence[MemoryEvent], saved: frozenset[int]) -> _Span | None:
        """Return when the block's values wait, None if backward releases none of them.

        It runs again before the results of the operation that is the first to release some of them,
        or to make a gradient of the block's parameters.
        """
        # others may free what the block returned, or a cache, much later
        left_at = max(e.index for e in own if e.phase == "forward" and e.kind == "alloc")
        released = [
            event.index
            for event in self.events
            if event.kind == "free" and event.storage in saved and event.index > left_at
        ]
        if not released:  # the script keeps them all
            return None
        gradients = [e.index for e in own if e.phase == "backward" and e.kind == "alloc"]
        first = self.events[0].index
        left, entered = left_at - first, min(released + gradients) - first - 1
        while entered > left and self.events[entered].kind == "alloc":
            entered -= 1
        return _Span(left, entered, max(released) - first)

    def holds(self, arguments: Container[int], block: int, span: _Span) -> list[_Hold]:
        """Return the arguments that are released before backward enters the block."""
        return [
            _Hold(event.storage, event.size_bytes, block, position, span.ended_at)
            for position, event in enumerate(self.events[: span.entered_at])
            if event.kind == "free" and event.storage in arguments
        ]

    def windows(self, spans: Sequence[_Span], holds: Sequence[_Hold]) -> tuple[StepWindow, ...]:
        """Cut the pass at the ends of the spans, and where an argument is released."""
        ends = {0, len(self.events), *(end for span in spans for end in span)}
        ends.update(hold.freed_at for hold in holds)
        return tuple(self.window(start, end, spans, holds) for start, end in pairwise(sorted(ends)))

    def window(
        self, start: int, end: int, spans: Sequence[_Span], holds: Sequence[_Hold]
    ) -> StepWindow:
        """Return the events from `start` to `end`, the same for the entry of a block."""
        return StepWindow(
            peak_bytes=max(self.levels[start : end + 1]),
            waiting=_waiting(start, end, spans),
            arguments=_arguments(
                [hold for hold in holds if hold.freed_at <= start <= end <= hold.ended_at]
            ),
        )


def _change(event: MemoryEvent) -> int:
    return event.size_bytes if event.kind == "alloc" else -event.size_bytes


def _waiting(start: int, end: int, spans: Sequence[_Span]) -> frozenset[int]:
    return frozenset(
        index
        for index, span in enumerate(spans)
        if span.left_at <= start and end <= span.entered_at
    )


def _arguments(holds: Iterable[_Hold]) -> tuple[HeldArgument, ...]:
    """Count an argument of several blocks once."""
    blocks: dict[tuple[int, int], set[int]] = {}
    for hold in holds:
        blocks.setdefault((hold.storage, hold.size_bytes), set()).add(hold.block)
    return tuple(HeldArgument(size, frozenset(own)) for (_, size), own in blocks.items())


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
