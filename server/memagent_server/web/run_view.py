"""Parts of the run page: the comparison of its ranks, and the flame graph of live memory.

Pure functions: streams of GET /runs/{id} or stacks in, text or rectangles out. The flame graph has
a rectangle for each frame, as wide as its bytes. The outermost frame is at the top (an icicle
graph), as in a stack trace. Rectangles narrower than a pixel are omitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from memagent.units import format_bytes
from memagent_server.schemas.base import JsonObject
from memagent_server.schemas.runs import Stream
from memagent_server.web.labels import signed_bytes

EVEN_RATIO = 0.05
"""Ranks are even if their peaks differ by at most this share of the median."""


@dataclass(frozen=True)
class RankBalance:
    """A rank's row. `relative` is its peak minus the median of all ranks."""

    rank: int
    device: str
    name: str
    peak: str
    share: str
    headroom: str
    relative: str


def compared_ranks(streams: Sequence[Stream]) -> list[Stream]:
    """Return the comparable streams, of GPUs if any; empty for fewer than two ranks."""
    with_samples = [stream for stream in streams if stream.samples]
    on_gpu = [stream for stream in with_samples if stream.kind != "host"]
    compared = sorted(on_gpu or with_samples, key=lambda stream: (stream.rank, stream.device))
    return compared if len({stream.rank for stream in compared}) > 1 else []


def imbalance(streams: Sequence[Stream]) -> str:
    """Describe how evenly the ranks use memory; empty if fewer than two peaks are known.

    It compares devices, by their ids, if a rank has several.
    """
    # streams themselves have no order: ties go by rank and device
    peaks = sorted(
        ((stream.peak_bytes, stream) for stream in streams if stream.peak_bytes),
        key=lambda item: (item[0], item[1].rank, item[1].device),
    )
    if len(peaks) < 2:
        return ""
    several = have_several_devices(streams)
    (lowest, emptiest), (highest, fullest) = peaks[0], peaks[-1]
    middle, number = median(peak for peak, _ in peaks), f"{len(peaks)} "
    number += "devices" if several else "ranks"
    if highest - lowest <= EVEN_RATIO * middle:
        spread = max(1, round(100 * (highest - lowest) / middle))
        return f"Even: the peaks of {number} are within {spread} % of each other."
    fullest_text = f"Uneven: {rank_name(fullest, several)} peaks at {format_bytes(highest)}"
    least = rank_name(emptiest, several)
    if len(peaks) == 2:
        return f"{fullest_text}, {round(100 * (highest / lowest - 1))} % above {least}."
    over = round(100 * (highest / middle - 1))
    return (
        f"{fullest_text}, {over} % above the median of {number}; {least} at {format_bytes(lowest)}."
    )


def have_several_devices(streams: Sequence[Stream]) -> bool:
    """Return True if a rank has more than one device."""
    return len({stream.rank for stream in streams}) < len(streams)


def rank_name(stream: Stream, several: bool) -> str:
    """Return `rank 3`, with the device's id if ranks have several."""
    return f"rank {stream.rank}" + (f", {stream.device}" if several else "")


def rank_rows(streams: Sequence[Stream]) -> list[RankBalance]:
    """Return the heat map as table rows."""
    peaks = [stream.peak_bytes for stream in streams if stream.peak_bytes]
    middle = median(peaks) if peaks else None
    return [_rank_row(stream, middle) for stream in streams]


def _rank_row(stream: Stream, middle: float | None) -> RankBalance:
    peak, limit = stream.peak_bytes, stream.limit_bytes
    headroom = limit - peak if limit and peak else None
    return RankBalance(
        rank=stream.rank,
        device=stream.device,
        name=stream.name,
        peak=format_bytes(peak),
        share=_share(peak, limit),
        headroom=format_bytes(headroom).replace("-", "−"),
        relative=signed_bytes(round(peak - middle)) if middle and peak else "–",
    )


def _share(part: float | None, whole: float | None) -> str:
    return f"{100 * part / whole:.0f} %" if part is not None and whole else "–"


WIDTH = 1000.0
"""The width of the picture in SVG units."""
ROW_HEIGHT = 18
_MIN_WIDTH = 1.0
_MAX_DEPTH = 48
_LETTER_WIDTH = 6.6
_TONES = 6


@dataclass(frozen=True)
class FlameBlock:
    """One frame. `text` is the part of `title` that fits; `tone` selects the frame's color."""

    x: float
    y: int
    width: float
    text: str
    title: str
    tone: int


@dataclass
class _Node:
    size: int = 0
    children: dict[str, _Node] = field(default_factory=dict)


def flame(stacks: Sequence[JsonObject]) -> tuple[list[FlameBlock], int]:
    """Return (blocks, height of the picture) for `Stack`s as dicts."""
    root = _Node()
    for stack in stacks:
        _add(root, stack["frames"] or ["(unknown)"], stack["size_bytes"])
    if not root.size:
        return [], 0
    blocks = list(_blocks(root, 0.0, 0, WIDTH / root.size, root.size))
    # all of many small stacks may be too narrow
    return blocks, max((block.y for block in blocks), default=-ROW_HEIGHT) + ROW_HEIGHT


def _add(root: _Node, frames: Sequence[str], size: int) -> None:
    node = root
    node.size += size
    for frame in frames[:_MAX_DEPTH]:
        node = node.children.setdefault(frame, _Node())
        node.size += size


def _blocks(node: _Node, x: float, y: int, scale: float, total: int) -> Iterator[FlameBlock]:
    for frame, child in sorted(node.children.items(), key=lambda item: -item[1].size):
        width = child.size * scale
        if width < _MIN_WIDTH:
            return
        share = 100 * child.size / total
        yield FlameBlock(
            x=round(x, 2),
            y=y,
            width=round(width, 2),
            text=_truncate(frame, width),
            title=f"{frame}: {format_bytes(child.size)} ({share:.0f} %)",
            tone=sum(frame.encode()) % _TONES,
        )
        yield from _blocks(child, x, y + ROW_HEIGHT, scale, total)
        x += width


def _truncate(frame: str, width: float) -> str:
    """Return as much of a frame's name as fits, empty if that is too short to read."""
    room = int((width - 6) / _LETTER_WIDTH)
    if room < 4:
        return ""
    return frame if len(frame) <= room else frame[: room - 1] + "…"
