"""A run as MLflow's stores have it, whichever of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MetricPoint = tuple[str, Any, Any, Any]
"""Name, step, time in milliseconds, value: as stored, so of any type."""


@dataclass
class TrackingRun:
    """One run. `points` may be read only once; `skipped` and `notes` are whole after that."""

    place: Path
    run_id: str
    status: str
    name: str | None
    experiment: str | None
    user: str | None
    start_ms: Any
    end_ms: Any
    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    points: Iterable[MetricPoint]
    skipped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
