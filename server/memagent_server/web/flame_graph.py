"""Flame graph of live memory: a rectangle for each frame, as wide as its bytes. Pure functions:
stacks in, rectangles out.

The outermost frame is at the top (an icicle graph), as in a stack trace. Rectangles narrower than a
pixel are omitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from memagent.units import format_bytes
from memagent_server.schemas.base import JsonObject

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
    return blocks, max(block.y for block in blocks) + ROW_HEIGHT


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
