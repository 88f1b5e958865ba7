"""Readings of GPUs and the process that a source took between steps, as columns of devices.

1. A source reads every ten seconds or so, and by its own count. The step of a reading is the newest
   one that the run had logged by then; without scalars, it's the number of the reading.
2. A source that gives usage and its share of the memory gives the device's size: by the reading
   with the highest share, whose rounding matters least.
"""

from __future__ import annotations

import math
import zlib
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence

from memagent.importer.scalar_table import END_TIME_S, Extent, PointColumns
from memagent.wire.columns import Value
from memagent.wire.fields import kind_of
from memagent.wire.messages import Device

HOST = "host"
SHARE = "share_ratio"
"""Share of the device's memory in use: no column, but the size follows from it."""
DEVICE_LIMIT = 64
"""Limit for a run, that of the wire format."""
READING_LIMIT = 400_000
"""Limit for a run: nine days of eight GPUs, each 15 s as by W&B. A reading takes a kilobyte."""
BLOCK_ROWS = 10_000
_NAME_CHARACTERS = 200
_END_BYTES = 2**62

ReadingClock = tuple[Sequence[float], Sequence[int]]
"""Increasing times and the steps at them."""
_Readings = dict[float, dict[str, float]]


class DeviceLog:
    """Readings by device and time. `left_out` counts those that can't be stored, by reason."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self.last_time_s = 0.0
        self._names: dict[str, str] = {}
        self._total_bytes: dict[str, int] = {}
        self._readings: dict[str, _Readings] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of readings."""
        return self._count

    def describe(self, device: str, *, name: str = "", total_bytes: int = 0) -> None:
        """Set a device's model and size, if they are known."""
        if device not in self._names and len(self._names) >= DEVICE_LIMIT:
            return
        if device != HOST or name:
            self._names[device] = name[:_NAME_CHARACTERS] or "GPU"
        if 0 < total_bytes < _END_BYTES:
            self._total_bytes[device] = total_bytes

    def add(self, device: str, column: str, time_s: float, value: float) -> None:
        """Add a value; it joins others of its device and time."""
        if not (0 <= value < _END_BYTES and 0 <= time_s < END_TIME_S):
            self.left_out["readings out of range"] += 1
            return
        of_device = self._readings.get(device)
        if of_device is None and len(self._readings) < DEVICE_LIMIT:
            of_device = self._readings[device] = {}
        if of_device is None or (time_s not in of_device and self._count >= READING_LIMIT):
            self.left_out[f"readings after the first {READING_LIMIT:,}"] += 1
            return
        if time_s not in of_device:
            of_device[time_s] = {}
            self._count += 1
        of_device[time_s][column] = value
        self.last_time_s = max(self.last_time_s, time_s)

    def devices(self) -> list[Device]:
        """Return the devices, GPUs first: the first of a rank is the one that it trains on."""
        ids = sorted(self._readings, key=lambda item: (item == HOST, item))
        return [self._device(device_id, index) for index, device_id in enumerate(ids)]

    def extents(self) -> dict[str, Extent]:
        """Return the extent of each device: the number of its readings, and their times."""
        return {device: _extent(self._readings[device]) for device in self._readings}

    def extends(self, extents: Mapping[str, Extent]) -> bool:
        """Return True if the readings of the extents are still the first of their devices."""
        return all(
            device in self._readings and _extent(self._readings[device], extent[0]) == extent
            for device, extent in extents.items()
        )

    def blocks(
        self, clock: ReadingClock, known: Mapping[str, Extent] | None = None
    ) -> list[tuple[str, PointColumns]]:
        """Return samples of each device as columns, without known readings."""
        blocks = []
        for device, readings in self._readings.items():
            rows = sorted(readings.items())
            first, _ = (known or {}).get(device, (0, 0))
            # a block is a batch, and batches have limits
            for begin in range(first, len(rows), BLOCK_ROWS):
                part = rows[begin : begin + BLOCK_ROWS]
                blocks.append((device, _columns(part, begin, clock)))
        return blocks

    def _device(self, device_id: str, index: int) -> Device:
        total_bytes = self._total_bytes.get(device_id)
        source = None
        if total_bytes is None and (total_bytes := self._estimated_bytes(device_id)) is not None:
            source = "estimated from the used share"
        name = self._names.get(device_id) or ("host" if device_id == HOST else "GPU")
        return Device(
            id=device_id,
            kind="host" if device_id == HOST else "cuda",
            name=name,
            index=index,
            total_bytes=total_bytes,
            limit_bytes=total_bytes,
            limit_source=source,
        )

    def _estimated_bytes(self, device: str) -> int | None:
        readings = self._readings[device].values()
        pairs = [
            (item[SHARE], item["device_used_bytes"])
            for item in readings
            if SHARE in item and "device_used_bytes" in item
        ]
        share, used_bytes = max(pairs, default=(0.0, 0.0))
        size = used_bytes / share if share > 0 else math.inf
        return round(size) if 0 < size < _END_BYTES else None


def _extent(readings: _Readings, count: int | None = None) -> Extent:
    times = array("d", sorted(readings)[:count])
    return len(times), zlib.crc32(times)


def _columns(
    rows: Sequence[tuple[float, dict[str, float]]], first: int, clock: ReadingClock
) -> PointColumns:
    times, steps = clock
    columns: PointColumns = {"step": [], "time_s": [time_s for time_s, _ in rows]}
    for number, (time_s, _) in enumerate(rows, first):
        known = bisect_right(times, time_s)
        columns["step"].append((steps[known - 1] if known else 0) if times else number)
    for name in dict.fromkeys(name for _, row in rows for name in row if name != SHARE):
        columns[name] = [_to_value(name, row.get(name)) for _, row in rows]
    return columns


def _to_value(column: str, value: float | None) -> Value:
    return round(value) if value is not None and kind_of(column) == "int" else value
