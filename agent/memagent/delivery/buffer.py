"""Where the training thread leaves its rows: bounded, lock-free, never waking anybody."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from memagent.wire.columns import Value

Row = tuple[Value, ...]

CAPACITY_ROWS = 20_000
"""Rows a buffer may hold: twenty seconds of a loop with a step a millisecond, some 10 MB."""


class DroppedSamples(Counter[str]):
    """Samples that could not be kept, by reason; cumulative, and sent along with every batch."""


class SampleBuffer:
    """Rows of one stream, and beside each row the values that few rows have (user phases, scalars).

    `append` is called by the training thread, `drain` by the collector; a deque's append and popleft are atomic.
    """

    def __init__(
        self,
        stream: str,
        columns: Sequence[str],
        drops: DroppedSamples,
        capacity: int = CAPACITY_ROWS,
    ) -> None:
        self.stream = stream
        self.columns = tuple(columns)
        self._rows: deque[tuple[Row, dict[str, Value] | None]] = deque()
        self._drops, self._capacity = drops, capacity

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, row: Row, extra: dict[str, Value] | None = None) -> None:
        if len(self._rows) >= self._capacity:
            self._drops["buffer_full"] += 1
            return
        self._rows.append((row, extra))

    def drain(self) -> list[tuple[Row, dict[str, Value] | None]]:
        """All rows so far, oldest first."""
        rows = []
        while self._rows:
            rows.append(self._rows.popleft())
        return rows


def to_columns(
    names: Sequence[str], rows: Sequence[tuple[Row, dict[str, Value] | None]]
) -> dict[str, list[Value]]:
    """Rows turned into columns; a column that has no value at all is left out."""
    columns: dict[str, list[Value]] = {
        name: list(values)
        for name, values in zip(names, zip(*(row for row, _ in rows), strict=True), strict=True)
    }
    for name in dict.fromkeys(name for _, extra in rows if extra for name in extra):
        columns[name] = [extra.get(name) if extra else None for _, extra in rows]
    return {
        name: values
        for name, values in columns.items()
        if any(value is not None for value in values)
    }
