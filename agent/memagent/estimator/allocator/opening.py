"""The state a recorded history begins with.

torch records from when it is asked, and keeps the last so many entries, so memory is often held before the first entry. The
snapshot tells the end; taking the entries back one by one, last first, gives the beginning:

1. From the end: which segments there were, and which blocks were given out, with the sizes requested.
2. A block's own size: as at the end, where it lived that long; else the rounded request, and up to the next block or the
   segment's end if that is no more than 1 MiB away in the large pool, because so little is never split off there (nor
   anything from blocks of the maximal split size).
3. All other space in the segments is free.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memagent.estimator.allocator.blocks import Piece
from memagent.estimator.allocator.caching import CachingAllocator
from memagent.estimator.allocator.config import AllocatorConfig
from memagent.estimator.allocator.rules import SMALL_SIZE, round_size
from memagent.estimator.allocator.segments import RecordedSegments


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment, or a mapped range of an expandable one. Bytes."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool = False


@dataclass(slots=True)
class Held:
    """A block given out before the record began: where, how much was requested, its size if the end shows it."""

    address: int
    requested: int
    size: int | None = None
    pending: bool = False


@dataclass(slots=True)
class Opening:
    """Segments (address to size and stream; expandable ones as their mapped ranges) and the blocks given out in them."""

    segments: dict[int, Segment] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)


def find_opening(
    snapshot: Mapping[str, Any], trace: Sequence[Mapping[str, Any]], device: int
) -> Opening:
    """What was held when the trace begins; nothing for a trace that begins with the process."""
    opening = _ending(snapshot, device)
    if not opening.segments and "segments" not in snapshot:
        return opening
    for entry in reversed(trace):
        _take_back(opening, entry)
    return opening


def restore(
    opening: Opening, allocator: CachingAllocator, recorded: RecordedSegments
) -> dict[int, int]:
    """Put an opening into a fresh allocator; block numbers by address."""
    blocks: dict[int, int] = {}
    grown: dict[
        tuple[int, bool], list[Piece]
    ] = {}  # all mapped ranges of a stream and pool are one expandable segment
    inside = _by_segment(opening)
    for start in sorted(opening.segments):
        segment = opening.segments[start]
        pieces = _pieces(segment, inside[start], allocator.config)
        if not segment.expandable:
            blocks.update(
                allocator.adopt(pieces, segment.stream, small=segment.small, expandable=False)
            )
            continue
        known = grown.setdefault((segment.stream, segment.small), [])
        if known:
            end = known[-1].address + known[-1].size
            known.append(Piece(end, start - end, mapped=False))
        known.extend(pieces)
    for (stream, small), pieces in grown.items():
        blocks.update(allocator.adopt(pieces, stream, small=small, expandable=True))
    for segment in opening.segments.values():
        recorded.taken(segment.address, segment.size, expandable=segment.expandable)
    recorded.settled()
    return blocks


def _by_segment(opening: Opening) -> dict[int, list[Held]]:
    starts = sorted(opening.segments)
    inside: dict[int, list[Held]] = {start: [] for start in starts}
    for one in sorted(opening.held.values(), key=lambda held: held.address):
        start = starts[bisect_right(starts, one.address) - 1] if starts else one.address + 1
        if start <= one.address < start + opening.segments[start].size:
            inside[start].append(one)
    return inside


def _ending(snapshot: Mapping[str, Any], device: int) -> Opening:
    opening = Opening()
    for one in snapshot.get("segments") or []:
        if int(one.get("device", 0)) != device:
            continue
        address = int(one["address"])
        segment = Segment(
            address,
            int(one["total_size"]),
            int(one.get("stream", 0)),
            small=one.get("segment_type") == "small",
            expandable=bool(one.get("is_expandable", False)),
        )
        opening.segments[address] = segment
        for block in one["blocks"]:
            size = int(block["size"])
            if block["state"] != "inactive":
                requested = int(block.get("requested_size", size))
                opening.held[address] = Held(
                    address, requested, size, pending=block["state"] != "active_allocated"
                )
            address += size
    return opening


def _take_back(opening: Opening, entry: Mapping[str, Any]) -> None:
    action = entry["action"]
    if action == "alloc":
        opening.held.pop(int(entry["addr"]), None)
    elif action == "free_completed":
        address = int(entry["addr"])
        opening.held[address] = Held(address, int(entry["size"]), pending=True)
    elif action == "free_requested":
        one = opening.held.get(int(entry["addr"]))
        if one is not None:
            one.pending = False
    elif action in {"segment_alloc", "segment_map"}:
        _remove_range(opening, int(entry["addr"]), int(entry["size"]))
    elif action in {"segment_free", "segment_unmap"}:
        _add_range(opening, entry)


def _remove_range(opening: Opening, address: int, size: int) -> None:
    """Take a range out of the segment around it; mapped ranges may have grown together."""
    for start, one in list(opening.segments.items()):
        if start <= address and address + size <= start + one.size:
            del opening.segments[start]
            if address > start:
                opening.segments[start] = replace(one, size=address - start)
            if address + size < start + one.size:
                opening.segments[address + size] = replace(
                    one, address=address + size, size=start + one.size - address - size
                )
            return


def _add_range(opening: Opening, entry: Mapping[str, Any]) -> None:
    address, size, stream = int(entry["addr"]), int(entry["size"]), int(entry.get("stream", 0))
    expandable = entry["action"] == "segment_unmap"
    # A segment of 2 MiB is a small one: large ones have at least 10 MiB. Pages of expandable ones likewise.
    piece = Segment(
        address,
        size,
        stream,
        small=size % (10 * SMALL_SIZE) != 0 if expandable else size == 2 * SMALL_SIZE,
    )
    if expandable:
        piece = _grown_together(opening, piece)
    opening.segments[piece.address] = piece


def _grown_together(opening: Opening, piece: Segment) -> Segment:
    start, end, small = piece.address, piece.address + piece.size, piece.small
    for one in list(opening.segments.values()):
        if one.expandable and (one.address + one.size == start or one.address == end):
            start, end, small = min(start, one.address), max(end, one.address + one.size), one.small
            del opening.segments[one.address]
    return Segment(start, end - start, piece.stream, small=small, expandable=True)


def _pieces(segment: Segment, held: list[Held], config: AllocatorConfig) -> list[Piece]:
    """The whole segment as blocks given out and free ones, by address."""
    pieces = []
    reached = segment.address
    for number, one in enumerate(held):
        end = held[number + 1].address if number + 1 < len(held) else segment.address + segment.size
        room = end - one.address
        size = one.size or round_size(one.requested, config)
        unsplit = not (segment.small or segment.expandable) and (
            room - size <= SMALL_SIZE or size >= config.max_split_bytes
        )
        if size > room or unsplit:
            size = room
        if one.address > reached:
            pieces.append(Piece(reached, one.address - reached))
        pieces.append(Piece(one.address, size, one.requested, one.pending))
        reached = one.address + size
    if reached < segment.address + segment.size:
        pieces.append(Piece(reached, segment.address + segment.size - reached))
    return pieces
