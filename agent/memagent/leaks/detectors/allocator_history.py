"""The CUDA allocator's own record: which lines allocated what is still held some steps later.

Works on the dictionary of `torch.cuda.memory._snapshot()`: `segments` with `blocks`, each with `size`, `state` and `frames` of `filename`,
`line`, `name`, innermost first (source: torch/cuda/memory.py). `AllocatorHistoryDetector` makes two of them; the rest are pure functions.

It names where memory is *allocated*; the census names what *holds* it. Stacks of Python only: with those of C++ a dump takes minutes
(torchtitan 3628); always with a limit of entries; switched off again without the annotation hooks that an early version left behind
(pytorch 153571).

The CUDA allocator's snapshot as torch's own viewer opens it: a pickle for pytorch.org/memory_viz, and a page by torch's `_memory_viz`.

The pickle stays on the host that trained: nobody else should have to load one. The page goes to the server too, which only hands it out. It
fetches its script from a CDN when it is opened.
"""

from __future__ import annotations

import pickle
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent.leaks.detectors.base import Detector, Frame, Stack, StackAllocation, TimeBudget
from memagent.leaks.suspect import build_suspect
from memagent.wire.messages import DiagnosisMethod, Suspect

MOST_ENTRIES = 100_000
_LIVE = ("active_allocated", "active_awaiting_free", "active_pending_free")
_MOST = 5


def held_by_stack(
    snapshot: Mapping[str, Any], device: int | None = None
) -> dict[Stack, StackAllocation]:
    """Live bytes by Python stack, of one device or of all. Blocks from before the recording have no stack, and are left out."""
    sizes: Counter[Stack] = Counter()
    blocks: Counter[Stack] = Counter()
    for stack, size in _live_blocks(snapshot, device):
        sizes[stack] += size
        blocks[stack] += 1
    return {stack: StackAllocation(stack, size, blocks[stack]) for stack, size in sizes.items()}


def difference(
    first: Mapping[str, Any], last: Mapping[str, Any], device: int | None = None
) -> list[StackAllocation]:
    """What each stack holds more in the last snapshot than in the first, most bytes first."""
    before, after = held_by_stack(first, device), held_by_stack(last, device)
    nothing = StackAllocation((), 0, 0)
    more = [
        StackAllocation(stack, held.size_bytes - old.size_bytes, held.blocks - old.blocks)
        for stack, held in after.items()
        if (old := before.get(stack, nothing)).size_bytes < held.size_bytes
    ]
    return sorted(more, key=lambda held: -held.size_bytes)


def suspects(
    first: Mapping[str, Any], last: Mapping[str, Any], steps: int, device: int | None = None
) -> list[Suspect]:
    """Lines of the script whose allocations piled up over `steps` steps: one more block every other step, or one of growing size."""
    by_place: dict[tuple[str, int], tuple[Frame, int, int]] = {}
    for held in difference(first, last, device):
        if (frame := held.place) is not None:
            _, size, blocks = by_place.get(frame[:2], (frame, 0, 0))
            by_place[frame[:2]] = (frame, size + held.size_bytes, blocks + held.blocks)
    steps = max(1, steps)
    found = [
        build_suspect(
            file,
            line,
            function,
            f"{blocks:,} blocks allocated here are still held",
            "allocation",
            size // steps,
            0.7,
        )
        for (file, line, function), size, blocks in by_place.values()
        if 2 * blocks >= steps or (blocks <= 0 and size >= steps)
    ]
    return sorted(found, key=lambda suspect: -(suspect.bytes_per_step or 0))[:_MOST]


def folded(held: Iterable[StackAllocation]) -> list[dict[str, Any]]:
    """For a flame graph, as JSON: `[{"stack": ["train.py:12 main", ...], "bytes": 1024, "blocks": 2}]`, outermost frame first, most bytes
    first."""
    rows = [
        {
            "stack": [f"{file}:{line} {function}" for file, line, function in each.stack],
            "bytes": each.size_bytes,
            "blocks": each.blocks,
        }
        for each in held
    ]
    return sorted(rows, key=lambda row: -row["bytes"])


def flame(held: Iterable[StackAllocation]) -> dict[str, Any]:
    """The same as a tree: `{"name", "bytes", "children": [...]}`, children largest first."""
    root: dict[str, Any] = {"name": "all", "bytes": 0, "children": {}}
    for each in held:
        node = root
        node["bytes"] += each.size_bytes
        for file, line, function in each.stack:
            fresh = {"name": f"{file}:{line} {function}", "bytes": 0, "children": {}}
            node = node["children"].setdefault((file, line, function), fresh)
            node["bytes"] += each.size_bytes
    return _listed(root)


def _listed(node: dict[str, Any]) -> dict[str, Any]:
    children = sorted(map(_listed, node["children"].values()), key=lambda child: -child["bytes"])
    return {**node, "children": children}


def _live_blocks(snapshot: Mapping[str, Any], device: int | None) -> Iterator[tuple[Stack, int]]:
    for segment in snapshot.get("segments", ()):
        if device is not None and segment.get("device", device) != device:
            continue
        for block in segment.get("blocks", ()):
            if block.get("state") in _LIVE and block.get("frames"):
                frames = [
                    (str(f["filename"]), int(f["line"]), str(f["name"])) for f in block["frames"]
                ]
                yield tuple(frames[::-1]), int(block.get("requested_size") or block["size"])


class AllocatorHistoryDetector(Detector):
    """Records, and compares a snapshot from the middle with one from the end. A script that records by itself is left alone."""

    method: DiagnosisMethod = "history"

    def __init__(self) -> None:
        self._is_ours = False
        self._marked_at = 0
        self._middle: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        """The snapshot of the end: opens in torch's own viewer."""

    def begin(self, step: int) -> None:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized() or is_recording():
            return
        torch.cuda.memory._record_memory_history(
            enabled="all", context="alloc", stacks="python", max_entries=MOST_ENTRIES
        )
        self._is_ours = True

    def middle(self, step: int) -> None:
        if self._is_ours:
            self._marked_at, self._middle = step, _blocks()

    def end(self, step: int, deadline: TimeBudget) -> list[Suspect]:
        if not self._is_ours or not self._marked_at or deadline.is_over():
            return []
        self.last = _snapshot()
        self.grown = difference(self._middle, self.last)
        return suspects(self._middle, self.last, step - self._marked_at)

    def close(self) -> None:
        if self._is_ours:
            self._is_ours, self._marked_at, self._middle = False, 0, {}
            sys.modules["torch"].cuda.memory._record_memory_history(enabled=None)


def _snapshot() -> dict[str, Any]:
    return dict(sys.modules["torch"].cuda.memory._snapshot())


def _blocks() -> dict[str, Any]:
    """The blocks alone: with the events a snapshot may take most of a second (pytorch 172672). An older torch gives no choice."""
    try:
        return {"segments": sys.modules["torch"].cuda.memory.memory_snapshot(include_traces=False)}
    except TypeError:
        return _snapshot()


def is_recording() -> bool:
    """Whether torch records allocations now, whoever asked it to."""
    test = getattr(sys.modules["torch"]._C, "_cuda_isHistoryEnabled", None)
    return bool(test()) if test is not None else False


_LEVEL = 6
_NEWEST_EVENTS = (100_000, 20_000, 4_000, 0)
"""Of each device, until the page is small enough. A real record of 100,000 has 1.5 MiB packed."""


def save_snapshot(snapshot: Mapping[str, Any], stem: Path) -> tuple[Path, ...]:
    """Writes `<stem>.pickle`, as `torch.cuda.memory._dump_snapshot` does, and `<stem>.html`; returns what was written.

    Without a record of events there is no timeline, and the page draws the segments. The page is left out where this torch cannot make it.
    Raises OSError where the folder cannot be written."""
    data = stem.with_name(stem.name + ".pickle")
    data.parent.mkdir(parents=True, exist_ok=True)
    with data.open("wb") as file:
        pickle.dump(dict(snapshot), file)
    page = stem.with_name(stem.name + ".html")
    text = _page(snapshot)
    if text is None:
        return (data,)
    page.write_text(text)
    return (data, page)


def compressed_page(snapshot: Mapping[str, Any], most_bytes: int) -> bytes:
    """zlib of torch's page of at most `most_bytes`, for the wire; of the newest events where there are too many. Empty where this torch
    cannot make one, or not even the segments fit."""
    for events in _NEWEST_EVENTS:
        traces = [
            trace[len(trace) - min(events, len(trace)) :]
            for trace in snapshot.get("device_traces", ())
        ]
        text = _page({**snapshot, "device_traces": traces})
        if text is None:
            return b""
        packed = zlib.compress(text.encode(), _LEVEL)
        if len(packed) <= most_bytes and len(text) <= 8 * most_bytes:
            return packed
    return b""


def _page(snapshot: Mapping[str, Any]) -> str | None:
    try:
        from torch.cuda import _memory_viz

        plot = (
            _memory_viz.trace_plot
            if any(snapshot.get("device_traces", ()))
            else _memory_viz.segment_plot
        )
        return str(plot(dict(snapshot)))
    except Exception:  # noqa: BLE001 - private functions of torch: neither they nor what they take is promised
        return None
