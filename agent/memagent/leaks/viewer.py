"""The CUDA allocator's snapshot as torch's own viewer opens it: a pickle for pytorch.org/memory_viz, and a page by torch's `_memory_viz`.

The pickle stays on the host that trained: nobody else should have to load one. The page goes to the server too, which only hands it out. It
fetches its script from a CDN when it is opened.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LEVEL = 6
_NEWEST_EVENTS = (100_000, 20_000, 4_000, 0)
"""Of each device, until the page is small enough. A real record of 100,000 has 1.5 MiB packed."""


def save(snapshot: Mapping[str, Any], stem: Path) -> tuple[Path, ...]:
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


def packed_page(snapshot: Mapping[str, Any], most_bytes: int) -> bytes:
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
