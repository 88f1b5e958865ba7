"""Aggregates many rows into one point: the last value of a state, the maximum of a peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from memagent.wire.columns import Value

STATES = ("allocated_bytes", "reserved_bytes", "limit_bytes", "step_s")
PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes", "host_rss_bytes")
"""Columns whose maximum over the rows counts, as do the peaks of all phases."""


@dataclass(frozen=True)
class Point:
    """`values` by name, as in `cuda0/peak_allocated_bytes`, of the steps up to `step`.

    Times are seconds since the Unix epoch.
    """

    step: int
    time_s: float
    values: Mapping[str, float]


@dataclass
class PointWindow:
    """Aggregated rows since the last point."""

    step: int = 0
    time_s: float = 0.0
    values: dict[str, float] = field(default_factory=dict)

    def add(self, label: str, columns: Mapping[str, Sequence[Value]]) -> None:
        """Add rows of the device `label`."""
        for name, column in columns.items():
            values = [value for value in column if value is not None]
            if values and (name in STATES or is_peak(name)):
                series = f"{label}/{name}"
                value = max(values) if is_peak(name) else values[-1]
                self.values[series] = _combine(series, self.values.get(series), value)
        self.step = max([self.step, *(int(step) for step in columns["step"] if step is not None)])
        times = (time_s for time_s in columns.get("time_s", ()) if time_s is not None)
        self.time_s = max([self.time_s, *times])

    def point(self) -> Point | None:
        """Return the point of all rows, or None if there were none."""
        return Point(self.step, self.time_s, dict(self.values)) if self.values else None


def merge_points(points: Iterable[Point]) -> Point | None:
    """Merge consecutive points into one; None if there are none."""
    merged: Point | None = None
    for point in points:
        before = merged.values if merged is not None else {}
        combined = {
            name: _combine(name, before.get(name), value) for name, value in point.values.items()
        }
        merged = Point(point.step, point.time_s, {**before, **combined})
    return merged


def is_peak(name: str) -> bool:
    return name in PEAKS or (name.startswith("phase_") and name.endswith("_peak_bytes"))


def _combine(series: str, before: float | None, value: float) -> float:
    if before is not None and is_peak(series.rpartition("/")[2]):
        return max(before, value)
    return value
