"""Many rows summed up as one point: the last value of what is a state, the maximum of what is a peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from memagent.wire.columns import Value

STATES = ("allocated_bytes", "reserved_bytes", "limit_bytes", "step_s")
PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes", "host_rss_bytes")
"""Columns whose maximum over the rows is kept; so are the peaks of all phases."""


@dataclass(frozen=True)
class Point:
    """`values` by name, as in `cuda0/peak_allocated_bytes`, of the steps up to `step`. Times are seconds since the Unix epoch."""

    step: int
    time_s: float
    values: Mapping[str, float]


@dataclass
class Window:
    """What came since the last point."""

    step: int = 0
    time_s: float = 0.0
    values: dict[str, float] = field(default_factory=dict)

    def add(self, label: str, columns: Mapping[str, Sequence[Value]]) -> None:
        """Take rows of the device `label`."""
        for name, column in columns.items():
            known = [value for value in column if value is not None]
            if known and (name in STATES or is_peak(name)):
                series = f"{label}/{name}"
                newest = max(known) if is_peak(name) else known[-1]
                self.values[series] = _later(series, self.values.get(series), newest)
        self.step = max([self.step, *(int(step) for step in columns["step"] if step is not None)])
        self.time_s = max(
            [self.time_s, *(time_s for time_s in columns.get("time_s", ()) if time_s is not None)]
        )

    def point(self) -> Point | None:
        """None where nothing came."""
        return Point(self.step, self.time_s, dict(self.values)) if self.values else None


def merged(points: Iterable[Point]) -> Point | None:
    """Consecutive points as one; None for none."""
    newest: Point | None = None
    for point in points:
        before = newest.values if newest is not None else {}
        latest = {
            name: _later(name, before.get(name), value) for name, value in point.values.items()
        }
        newest = Point(point.step, point.time_s, {**before, **latest})
    return newest


def is_peak(name: str) -> bool:
    return name in PEAKS or (name.startswith("phase_") and name.endswith("_peak_bytes"))


def _later(series: str, before: float | None, value: float) -> float:
    return (
        max(before, value) if before is not None and is_peak(series.rpartition("/")[2]) else value
    )
