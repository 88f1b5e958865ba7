"""Values of columns of runs as people read them, in the list and in groups.

A setting is shown as the script wrote it: 10000 may be a seed as well as a count.
"""

from __future__ import annotations

from typing import Any

from memagent.filters.columns import RUN_COLUMNS
from memagent.units import format_bytes
from memagent_server.store.reading import iso
from memagent_server.web.labels import status_badge
from memagent_server.web.view_models import plain


def column_text(name: str, value: Any) -> str:
    """Return the value of a column as text; a dash if it's missing."""
    if name == "tags" and isinstance(value, list):
        return ", ".join(value) or "–"
    if name == "status" and isinstance(value, str):
        return status_badge(value).text
    if RUN_COLUMNS.get(name) == "time" and isinstance(value, int | float):
        return f"{(iso(value) or '')[:16].replace('T', ' ')} UTC"
    return figure_text(name, value) if isinstance(value, int | float) else plain(value)


def figure_text(name: str, value: float) -> str:
    """Return a figure of a column as text: shares in per cent, numbers of runs with separators."""
    if isinstance(value, bool):
        return plain(value)
    # three digits tell 99.4 from 99.9 per cent, and no list needs more
    if name == "peak_ratio":
        return f"{100 * value:.3g} %"
    if name == "peak_bytes":
        return format_bytes(value)
    if RUN_COLUMNS.get(name) == "number":
        return f"{value:,.0f}"
    return f"{value:.4g}" if name.startswith("scalar.") else plain(value)


def column_time(name: str, value: Any) -> str | None:
    """Return a time in ISO 8601, which pages show in the reader's zone; None for anything else."""
    is_time = RUN_COLUMNS.get(name) == "time" and isinstance(value, int | float)
    return iso(value) if is_time else None
