"""Snapshot of torch's allocator with its history, reduced to what a replay needs: plain JSON
without Python frames, compressed.

The keys are those of `torch.cuda.memory._snapshot()` ("device_traces", "segments"), so any reader
of a snapshot reads this. Events keep action, address, size and stream; segments keep address, size,
pool and blocks.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom",
)  # fmt: skip

_EVENT = ("action", "addr", "size", "stream", "device_free")
_SEGMENT = (
    "device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type",
    "segment_pool_id", "is_expandable",
)  # fmt: skip
_BLOCK = ("address", "size", "requested_size", "state")


def reduced(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return the snapshot without frames and without entries that are not about memory, such as
    profiler marks.
    """
    traces = [
        [_select(event, _EVENT) for event in trace if event["action"] in ACTIONS]
        for trace in snapshot["device_traces"]
    ]
    segments = [
        {
            **_select(segment, _SEGMENT),
            "blocks": [_select(block, _BLOCK) for block in segment.get("blocks", ())],
        }
        for segment in snapshot["segments"]
    ]
    return {
        "device_traces": traces,
        "segments": segments,
        "allocator_settings": dict(snapshot.get("allocator_settings", {})),
    }


def write(path: Path, snapshot: Mapping[str, Any]) -> int:
    """Write the reduced snapshot, the same bytes for the same content. Return the number of events."""
    content = reduced(snapshot)
    text = json.dumps(content, separators=(",", ":")).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text, mtime=0))
    return sum(map(len, content["device_traces"]))


def read(path: Path) -> dict[str, Any]:
    """Read what `write` wrote."""
    content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return content


def _select(item: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: item[name] for name in names if name in item}
