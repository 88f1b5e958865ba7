"""The CUDA allocator's snapshot as torch's own viewer opens it: a pickle for pytorch.org/memory_viz, and a page by torch's `_memory_viz`.

The files stay on the host that trained: nobody else should have to load a pickle. The page fetches its script from a CDN when it is opened.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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


def _page(snapshot: Mapping[str, Any]) -> str | None:
    try:
        from torch.cuda import _memory_viz

        plot = _memory_viz.trace_plot if any(snapshot.get("device_traces", ())) else _memory_viz.segment_plot
        return str(plot(dict(snapshot)))
    except Exception:  # noqa: BLE001 - private functions of torch: neither they nor what they take is promised
        return None
