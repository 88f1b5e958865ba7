"""The CUDA allocator's own record: the lines that allocated what is still held some steps later.

Works on the dictionary of `torch.cuda.memory._snapshot()`: `segments` with `blocks`, each with
`size`, `state` and `frames` of `filename`, `line` and `name`, innermost first
(torch/cuda/memory.py). `AllocatorHistoryDetector` takes two snapshots; everything else is pure
functions.

The record names where memory is *allocated*; the census names what *holds* it. It has Python stacks
only, as a dump with C++ stacks takes minutes (torchtitan 3628), and a limited number of entries.
Switching it off leaves no annotation hooks behind (pytorch 153571).

For torch's viewer, a snapshot is written as a pickle (for pytorch.org/memory_viz) and as a page by
torch's `_memory_viz`. The pickle stays on the training host: loading one runs code. The page goes
to the server too, which only stores it. It fetches its script from a CDN when opened.
"""

from __future__ import annotations

import pickle
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent.leaks.detectors.base import CallStack, Detector, StackAllocation, StackFrame
from memagent.leaks.suspect import build_suspect
from memagent.leaks.time_budgets import TimeBudget
from memagent.wire.messages import DiagnosisMethod, Suspect

MAX_ENTRIES = 100_000
_LIVE_STATES = ("active_allocated", "active_awaiting_free", "active_pending_free")
_MAX_SUSPECTS = 5
_COMPRESSION_LEVEL = 6
_MAX_PAGE_EVENTS = (100_000, 20_000, 4_000, 0)
"""Events per device, tried in turn until the page is small enough. 100,000 take 1.5 MiB."""


class AllocatorHistoryDetector(Detector):
    """Records, and compares a snapshot from the middle with one from the end.

    Does nothing if the script records by itself.
    """

    method: DiagnosisMethod = "history"

    def __init__(self) -> None:
        self._is_recording = False
        self._middle_step = 0
        self._middle: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        """Snapshot of the end; opens in torch's viewer."""

    def begin(self, step: int) -> None:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized() or is_recording():
            return
        torch.cuda.memory._record_memory_history(
            enabled="all", context="alloc", stacks="python", max_entries=MAX_ENTRIES
        )
        self._is_recording = True

    def middle(self, step: int) -> None:
        if self._is_recording:
            self._middle_step = step
            self._middle = _blocks_snapshot()

    def end(self, step: int, budget: TimeBudget) -> list[Suspect]:
        if not self._is_recording or not self._middle_step or budget.is_over():
            return []
        self.last = _full_snapshot()
        self.grown = difference(self._middle, self.last)
        return suspects(self._middle, self.last, step - self._middle_step)

    def close(self) -> None:
        if self._is_recording:
            self._is_recording = False
            self._middle_step = 0
            self._middle = {}
            sys.modules["torch"].cuda.memory._record_memory_history(enabled=None)


def is_recording() -> bool:
    """Return True if torch records allocations now, whether the script or memagent started it."""
    is_enabled = getattr(sys.modules["torch"]._C, "_cuda_isHistoryEnabled", None)
    return bool(is_enabled()) if is_enabled is not None else False


def _full_snapshot() -> dict[str, Any]:
    return dict(sys.modules["torch"].cuda.memory._snapshot())


def _blocks_snapshot() -> dict[str, Any]:
    """Return the blocks without events, as a full snapshot can take a second (pytorch 172672)."""
    try:
        return {"segments": sys.modules["torch"].cuda.memory.memory_snapshot(include_traces=False)}
    except TypeError:  # an older torch
        return _full_snapshot()


# -- growth -------------------------------------------------------------------------------------


def allocations_by_stack(
    snapshot: Mapping[str, Any], device: int | None = None
) -> dict[CallStack, StackAllocation]:
    """Return live bytes by Python stack, of one device or of all.

    Blocks from before the recording have no stack and are left out.
    """
    sizes: Counter[CallStack] = Counter()
    blocks: Counter[CallStack] = Counter()
    for stack, size in _live_blocks(snapshot, device):
        sizes[stack] += size
        blocks[stack] += 1
    return {stack: StackAllocation(stack, size, blocks[stack]) for stack, size in sizes.items()}


def _live_blocks(
    snapshot: Mapping[str, Any], device: int | None
) -> Iterator[tuple[CallStack, int]]:
    for segment in snapshot.get("segments", ()):
        if device is not None and segment.get("device", device) != device:
            continue
        for block in segment.get("blocks", ()):
            if block.get("state") in _LIVE_STATES and block.get("frames"):
                frames = [
                    (str(f["filename"]), int(f["line"]), str(f["name"])) for f in block["frames"]
                ]
                # torch lists the innermost frame first
                yield tuple(frames[::-1]), int(block.get("requested_size") or block["size"])


def difference(
    first: Mapping[str, Any], last: Mapping[str, Any], device: int | None = None
) -> list[StackAllocation]:
    """Return the growth of each stack between two snapshots, most bytes first."""
    before, after = allocations_by_stack(first, device), allocations_by_stack(last, device)
    empty = StackAllocation((), 0, 0)
    grown = [
        StackAllocation(stack, new.size_bytes - old.size_bytes, new.blocks - old.blocks)
        for stack, new in after.items()
        if (old := before.get(stack, empty)).size_bytes < new.size_bytes
    ]
    return sorted(grown, key=lambda allocation: -allocation.size_bytes)


def suspects(
    first: Mapping[str, Any], last: Mapping[str, Any], steps: int, device: int | None = None
) -> list[Suspect]:
    """Return lines of the script whose allocations piled up over `steps` steps.

    That is at least one more block every other step, or a block that is replaced by a larger one.
    """
    by_line: dict[tuple[str, int], tuple[StackFrame, int, int]] = {}
    for allocation in difference(first, last, device):
        if (frame := allocation.script_frame) is not None:
            _, size, blocks = by_line.get(frame[:2], (frame, 0, 0))
            by_line[frame[:2]] = (frame, size + allocation.size_bytes, blocks + allocation.blocks)
    steps = max(1, steps)
    suspects = [
        build_suspect(
            file,
            line,
            function,
            f"{blocks:,} blocks allocated here are still held",
            "allocation",
            size // steps,
            0.7,
        )
        for (file, line, function), size, blocks in by_line.values()
        if 2 * blocks >= steps or (blocks <= 0 and size >= steps)
    ]
    return sorted(suspects, key=lambda suspect: -(suspect.bytes_per_step or 0))[:_MAX_SUSPECTS]


# -- flame graphs -------------------------------------------------------------------------------


def folded(allocations: Iterable[StackAllocation]) -> list[dict[str, Any]]:
    """Return the rows of a flame graph as JSON, most bytes first.

    A row is `{"stack": ["train.py:12 main", ...], "bytes": 1024, "blocks": 2}`, outermost frame
    first.
    """
    rows = [
        {
            "stack": [f"{file}:{line} {function}" for file, line, function in allocation.stack],
            "bytes": allocation.size_bytes,
            "blocks": allocation.blocks,
        }
        for allocation in allocations
    ]
    return sorted(rows, key=lambda row: -row["bytes"])


def flame(allocations: Iterable[StackAllocation]) -> dict[str, Any]:
    """Return the same as a tree: `{"name", "bytes", "children": [...]}`, largest child first."""
    root: dict[str, Any] = {"name": "all", "bytes": 0, "children": {}}
    for allocation in allocations:
        node = root
        node["bytes"] += allocation.size_bytes
        for file, line, function in allocation.stack:
            child = {"name": f"{file}:{line} {function}", "bytes": 0, "children": {}}
            node = node["children"].setdefault((file, line, function), child)
            node["bytes"] += allocation.size_bytes
    return _with_sorted_children(root)


def _with_sorted_children(node: dict[str, Any]) -> dict[str, Any]:
    children = map(_with_sorted_children, node["children"].values())
    return {**node, "children": sorted(children, key=lambda child: -child["bytes"])}


# -- torch's viewer -----------------------------------------------------------------------------


def save_snapshot(snapshot: Mapping[str, Any], stem: Path) -> tuple[Path, ...]:
    """Write `<stem>.pickle` and `<stem>.html`, and return the paths that were written.

    The pickle is that of `torch.cuda.memory._dump_snapshot`. Without a record of events the page
    draws the segments. It's left out if this torch can't make it. Raises OSError if the folder
    isn't writable.
    """
    data = stem.with_name(stem.name + ".pickle")
    data.parent.mkdir(parents=True, exist_ok=True)
    with data.open("wb") as file:
        pickle.dump(dict(snapshot), file)
    text = _viewer_page(snapshot)
    if text is None:
        return (data,)
    page = stem.with_name(stem.name + ".html")
    page.write_text(text)
    return (data, page)


def compressed_page(snapshot: Mapping[str, Any], max_bytes: int) -> bytes:
    """Return zlib of torch's page in at most `max_bytes`, with as many recent events as fit.

    Empty if this torch can't make a page, or if even the segments don't fit.
    """
    for events in _MAX_PAGE_EVENTS:
        traces = [
            trace[len(trace) - min(events, len(trace)) :]
            for trace in snapshot.get("device_traces", ())
        ]
        text = _viewer_page({**snapshot, "device_traces": traces})
        if text is None:
            return b""
        packed = zlib.compress(text.encode(), _COMPRESSION_LEVEL)
        # the text is limited too: the server unpacks it
        if len(packed) <= max_bytes and len(text) <= 8 * max_bytes:
            return packed
    return b""


def _viewer_page(snapshot: Mapping[str, Any]) -> str | None:
    try:
        from torch.cuda import _memory_viz

        has_events = any(snapshot.get("device_traces", ()))
        plot = _memory_viz.trace_plot if has_events else _memory_viz.segment_plot
        return str(plot(dict(snapshot)))
    except Exception:  # noqa: BLE001 - private functions of torch: nothing about them is promised
        return None
