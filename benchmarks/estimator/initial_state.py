"""The allocator's state at the beginning of a recorded history.

torch keeps the last so many entries, from the moment it's asked to record. Memory is often
allocated before the first entry. The snapshot has the state at the end; undoing the entries, the
last one first, gives the state at the beginning:

1. The end shows the segments, and the allocated blocks with the requested sizes.
2. The size of a block is the one at the end if it lived that long. Otherwise a request shows it: a
   block is cut from the front of a free one, which begins where the block before it ends. Without
   such a request it's the rounded request. In the large pool it extends to the next block or the segment's end if that is no more
   than 1 MiB away, because less is never split off. Blocks of the maximal split size always do.
3. All other space in the segments is free.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from memagent.estimator.allocator import AllocatorConfig, CachingAllocator
from memagent.estimator.allocator.blocks import AddressRange, Block, Pool, link
from memagent.estimator.allocator.config import SMALL_SIZE, page_size, round_size
from memagent.estimator.allocator.device import Device, insert_unmapped


@dataclass(frozen=True, slots=True)
class RecordedSegment:
    """A segment, or a mapped range of an expandable one. Bytes."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool = False

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass(slots=True)
class RecordedBlock:
    """A block allocated before the record began; `size` is known only if the end shows it."""

    address: int
    requested: int
    size: int | None = None
    pending: bool = False


@dataclass(slots=True)
class InitialState:
    """Segments by address (expandable ones as their mapped ranges), and the blocks in them."""

    segments: dict[int, RecordedSegment] = field(default_factory=dict)
    blocks: dict[int, RecordedBlock] = field(default_factory=dict)
    _addresses: list[int] = field(default_factory=list)
    """Of the blocks, in order."""

    def add_block(self, block: RecordedBlock) -> None:
        if block.address not in self.blocks:
            insort(self._addresses, block.address)
        self.blocks[block.address] = block

    def undo_allocation(self, address: int) -> None:
        """Remove a block. It was cut from a free one, before which an allocated one ends here."""
        place = bisect_left(self._addresses, address)
        if self.blocks.pop(address, None) is not None:
            del self._addresses[place]
        if place == 0 or address in self.segments:
            return
        before = self.blocks[self._addresses[place - 1]]
        if before.size is None and address - before.address - before.requested <= 2 * SMALL_SIZE:
            before.size = address - before.address


@dataclass(frozen=True, slots=True)
class BlockSpan:
    """A block of an adopted segment: allocated if bytes were requested, else free.

    `pending` means that its free waits for a stream.
    """

    address: int
    size: int
    requested: int = 0
    pending: bool = False
    mapped: bool = True


class RecordedSegments:
    """The segments that torch took from the device and returned, with their addresses."""

    def __init__(self) -> None:
        self.reserved = 0
        self.peak_reserved = 0
        self.segments = 0
        self._released: set[int] = set()
        self._unused: list[tuple[int, int, bool]] = []  # since the last request

    def add(self, address: int, size: int, *, expandable: bool) -> None:
        """Record a `segment_alloc` or `segment_map`."""
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self.segments += not expandable
        self._unused.append((address, size, expandable))

    def release(self, address: int, size: int, *, expandable: bool) -> None:
        """Record a `segment_free` or `segment_unmap`."""
        self.reserved -= size
        self.segments -= not expandable
        self._released.add(address)

    def pop_released(self) -> set[int]:
        """Return the addresses released since the last call."""
        released, self._released = self._released, set()
        return released

    def grew(self) -> bool:
        """Return whether the device gave memory since the last request."""
        return bool(self._unused)

    def finish_request(self) -> None:
        """Forget the addresses that the finished request did not use."""
        self._unused.clear()

    def pop_address(
        self, size: int, *, expandable: bool, is_free: Callable[[int, int], bool]
    ) -> int | None:
        """Return the recorded address of the next segment of this size, if it is free."""
        for index, (address, recorded, kind) in enumerate(self._unused):
            if kind == expandable and (expandable or recorded == size):
                if not expandable and not is_free(address, size):
                    return None
                del self._unused[index]
                return address
        return None


class RecordedDevice(Device):
    """A device without a limit that places segments where the record has them."""

    __slots__ = ("_recorded", "_segments")

    def __init__(self, total_bytes: int | None, recorded: RecordedSegments) -> None:
        super().__init__(total_bytes)
        self.limit = None  # the record shows when the device was full
        self._recorded = recorded
        self._segments: list[tuple[int, int]] = []  # ends and starts, to avoid overlaps

    def place(self, size: int, *, expandable: bool) -> int:
        address = self._recorded.pop_address(size, expandable=expandable, is_free=self._is_free)
        if address is None:
            return super().place(size, expandable=expandable)
        self.keep_clear_of(address, size)
        return address

    def allocate_segment(self, size: int) -> int | None:
        address = super().allocate_segment(size)
        if address is not None:
            self.add_segment(address, size)
        return address

    def add_segment(self, address: int, size: int) -> None:
        """Remember where a segment of the simulation is."""
        insort(self._segments, (address + size, address))

    def release_segment(self, address: int, size: int) -> None:
        super().release_segment(address, size)
        del self._segments[bisect_left(self._segments, (address + size, address))]

    def _is_free(self, address: int, size: int) -> bool:
        nearest = bisect_right(self._segments, (address, 2**63))
        return nearest == len(self._segments) or self._segments[nearest][1] >= address + size


class RecordedAllocator(CachingAllocator):
    """An allocator that can start in the middle of a program and repeat what a record shows."""

    _device: RecordedDevice

    def __init__(
        self, config: AllocatorConfig, total_bytes: int | None, recorded: RecordedSegments
    ) -> None:
        super().__init__(config, device=RecordedDevice(total_bytes, recorded))
        self.limit(None)
        self.on_miss: Callable[[], None] | None = None
        """Called if no cached block serves a request."""

    def limit(self, size: int | None) -> None:
        """Limit the device to `size` bytes, or not at all; the memory fraction no longer counts."""
        self._device.limit = size
        self._allowed = None
        self._collects_garbage = False

    def has_cached(self, size: int, stream: int = 0) -> bool:
        """Return whether the cache would serve a request."""
        rounded = round_size(size, self.config)
        pool = self._pool(stream, small=rounded <= SMALL_SIZE)
        return self._find_cached(pool, rounded) is not None

    def release(self, addresses: Collection[int]) -> None:
        """Release the idle cached segments at these addresses."""
        for pool in self._pools.values():
            for block in pool.free_blocks():
                if block.address in addresses and block.expandable is None and not block.is_split():
                    self._reclaim.release_segment(block)

    def adopt(
        self, spans: Iterable[BlockSpan], stream: int, *, small: bool, expandable: bool
    ) -> dict[int, int]:
        """Add a segment as recorded, with all its blocks; return block numbers by address."""
        pool = self._pool(stream, small=small)
        if expandable:
            chain = self._expandable_chain(list(spans), pool)
        else:
            chain = [_block(span, pool) for span in spans]
        for before, after in pairwise(chain):
            link(after, before, None)
        size = sum(block.size for block in chain if block.mapped)
        self._device.allocate(size)
        self.stats.reserved_bytes.add(size, small=small)
        if not expandable:
            self.stats.segment.add(1, small=small)
            self._device.add_segment(chain[0].address, size)
        return {block.address: number for block in chain if (number := self._adopt_block(block))}

    def _allocate_segment(self, pool: Pool, size: int, requested: int) -> Block:
        if self.on_miss is not None:
            self.on_miss()
        return super()._allocate_segment(pool, size, requested)

    def _expandable_chain(self, spans: list[BlockSpan], pool: Pool) -> list[Block]:
        """Return the blocks of an expandable segment, with unmapped addresses behind them."""
        page = page_size(small=pool.small, config=self.config)
        start, end = spans[0].address, spans[-1].address + spans[-1].size
        size = max(self._device.address_space(page), end - start + page)
        addresses = AddressRange(start, size, page)
        self._expandable.ranges.append(addresses)
        spans = [*spans, BlockSpan(end, start + size - end, mapped=False)]
        chain = [_block(span, pool, addresses) for span in spans]
        for block in chain:
            if not block.mapped:
                insert_unmapped(pool, block)
        return chain

    def _adopt_block(self, block: Block) -> int:
        """Return the number of an allocated block; 0 for a free or unmapped one."""
        if not block.mapped:
            return 0
        if block.requested:
            pending = not block.allocated
            number = self._mark_allocated(block, block.requested)
            if pending:
                self.request_free(number)
            return number
        block.pool.add(block)
        if block.expandable is None and block.is_split():
            self.stats.inactive_split.add(1, small=block.pool.small)
            self.stats.inactive_split_bytes.add(block.size, small=block.pool.small)
        return 0


def find_initial_state(
    snapshot: Mapping[str, Any], trace: Sequence[Mapping[str, Any]], device: int
) -> InitialState:
    """Return the state before the trace; empty if the trace begins with the process."""
    state = _final_state(snapshot, device)
    if not state.segments and "segments" not in snapshot:
        return state
    for entry in reversed(trace):
        _undo(state, entry)
    return state


def restore(
    state: InitialState, allocator: RecordedAllocator, recorded: RecordedSegments
) -> dict[int, int]:
    """Put a state into a new allocator and return the block numbers by address."""
    numbers: dict[int, int] = {}
    # All mapped ranges of one stream and pool make up one expandable segment.
    expandable: dict[tuple[int, bool], list[BlockSpan]] = {}
    blocks = _blocks_by_segment(state)
    for start in sorted(state.segments):
        segment = state.segments[start]
        spans = _spans(segment, blocks[start], allocator.config)
        if not segment.expandable:
            numbers |= allocator.adopt(spans, segment.stream, small=segment.small, expandable=False)
            continue
        chain = expandable.setdefault((segment.stream, segment.small), [])
        if chain:
            end = chain[-1].address + chain[-1].size
            chain.append(BlockSpan(end, start - end, mapped=False))
        chain.extend(spans)
    for (stream, small), chain in expandable.items():
        numbers |= allocator.adopt(chain, stream, small=small, expandable=True)
    for segment in state.segments.values():
        recorded.add(segment.address, segment.size, expandable=segment.expandable)
    recorded.finish_request()
    return numbers


def _block(span: BlockSpan, pool: Pool, addresses: AddressRange | None = None) -> Block:
    return Block(
        span.address,
        span.size,
        pool,
        requested=span.requested,
        allocated=span.requested > 0 and not span.pending,
        mapped=span.mapped,
        expandable=addresses,
    )


def _blocks_by_segment(state: InitialState) -> dict[int, list[RecordedBlock]]:
    starts = sorted(state.segments)
    by_segment: dict[int, list[RecordedBlock]] = {start: [] for start in starts}
    for block in sorted(state.blocks.values(), key=lambda block: block.address):
        index = bisect_right(starts, block.address) - 1
        if index >= 0 and block.address < state.segments[starts[index]].end:
            by_segment[starts[index]].append(block)
    return by_segment


def _final_state(snapshot: Mapping[str, Any], device: int) -> InitialState:
    state = InitialState()
    for segment in snapshot.get("segments") or []:
        if int(segment.get("device", 0)) != device:
            continue
        address = int(segment["address"])
        state.segments[address] = RecordedSegment(
            address,
            int(segment["total_size"]),
            int(segment.get("stream", 0)),
            small=segment.get("segment_type") == "small",
            expandable=bool(segment.get("is_expandable", False)),
        )
        for block in segment["blocks"]:
            size = int(block["size"])
            if block["state"] != "inactive":
                requested = int(block.get("requested_size", size))
                pending = block["state"] != "active_allocated"
                state.add_block(RecordedBlock(address, requested, size, pending))
            address += size
    return state


def _undo(state: InitialState, entry: Mapping[str, Any]) -> None:
    match entry["action"]:
        case "alloc":
            state.undo_allocation(int(entry["addr"]))
        case "free_completed":
            address = int(entry["addr"])
            state.add_block(RecordedBlock(address, int(entry["size"]), pending=True))
        case "free_requested":
            block = state.blocks.get(int(entry["addr"]))
            if block is not None:
                block.pending = False
        case "segment_alloc" | "segment_map":
            _remove_range(state, int(entry["addr"]), int(entry["size"]))
        case "segment_free" | "segment_unmap":
            _add_range(state, entry)


def _remove_range(state: InitialState, address: int, size: int) -> None:
    """Cut a range out of the segment around it, as adjacent mapped ranges may have merged."""
    for start, segment in list(state.segments.items()):
        if start <= address and address + size <= segment.end:
            del state.segments[start]
            if address > start:
                state.segments[start] = replace(segment, size=address - start)
            if address + size < segment.end:
                rest = replace(segment, address=address + size, size=segment.end - address - size)
                state.segments[rest.address] = rest
            return


def _add_range(state: InitialState, entry: Mapping[str, Any]) -> None:
    address, size, stream = int(entry["addr"]), int(entry["size"]), int(entry.get("stream", 0))
    expandable = entry["action"] == "segment_unmap"
    # A segment of 2 MiB is a small one: large ones have at least 10 MiB. The same goes for pages.
    small = size % (10 * SMALL_SIZE) != 0 if expandable else size == 2 * SMALL_SIZE
    segment = RecordedSegment(address, size, stream, small=small)
    if expandable:
        segment = _merge_with_neighbors(state, segment)
    state.segments[segment.address] = segment


def _merge_with_neighbors(state: InitialState, segment: RecordedSegment) -> RecordedSegment:
    start, end, small = segment.address, segment.end, segment.small
    for other in list(state.segments.values()):
        if other.expandable and (other.end == start or other.address == end):
            start, end, small = min(start, other.address), max(end, other.end), other.small
            del state.segments[other.address]
    return RecordedSegment(start, end - start, segment.stream, small=small, expandable=True)


def _spans(
    segment: RecordedSegment, blocks: list[RecordedBlock], config: AllocatorConfig
) -> list[BlockSpan]:
    """Divide a whole segment into allocated and free blocks, by address."""
    spans = []
    position = segment.address
    for index, block in enumerate(blocks):
        end = blocks[index + 1].address if index + 1 < len(blocks) else segment.end
        room = end - block.address
        size = block.size or round_size(block.requested, config)
        unsplit = not (segment.small or segment.expandable) and (
            room - size <= SMALL_SIZE or size >= config.max_split_bytes
        )
        if size > room or unsplit:
            size = room
        if block.address > position:
            spans.append(BlockSpan(position, block.address - position))
        spans.append(BlockSpan(block.address, size, block.requested, block.pending))
        position = block.address + size
    if position < segment.end:
        spans.append(BlockSpan(position, segment.end - position))
    return spans
