"""Bounded, lock-free buffers between the training thread and the collector."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from memagent.wire.columns import Value

Row = tuple[tuple[Value, ...], dict[str, Value] | None]
"""Values of a stream's columns, and values by name that few rows have (user phases, scalars)."""
RowBuilder = Callable[[Any], Row | None]
"""Build the row of a raw entry, or return None if the entry only adds to a later row."""

Result = TypeVar("Result")

MAX_ROWS = 20_000
"""Rows a buffer may hold: twenty seconds of a loop with a step a millisecond, some 10 MB."""


class DroppedSamples(Counter[str]):
    """Samples that were lost, by reason; cumulative, and sent along with every batch."""


class SampleBuffer:
    """Raw entries of one stream, turned into rows when they are drained.

    `build_row` runs on the collector's thread, so that the training thread only appends. Without it
    the entries are rows already. A deque's append and popleft are atomic: no lock is needed.
    """

    def __init__(
        self,
        stream: str,
        columns: Sequence[str],
        drops: DroppedSamples,
        build_row: RowBuilder | None = None,
        *,
        max_rows: int = MAX_ROWS,
    ) -> None:
        self.stream = stream
        self.columns = tuple(columns)
        self.entries: deque[Any] = deque()
        self._build_row = build_row
        self._drops = drops
        self.max_rows = max_rows

    def __len__(self) -> int:
        return len(self.entries)

    def append(self, entry: Any) -> None:
        # not deque(maxlen=...), which would drop the oldest, and uncounted
        if len(self.entries) >= self.max_rows:
            self._drops["buffer_full"] += 1
            return
        self.entries.append(entry)

    def drain(self) -> list[Row]:
        """Remove all entries and return their rows, oldest first.

        Without room for the rows, the entries stay. Raises MemoryError then.
        """
        return self._drain(list)

    def drain_columns(self) -> dict[str, list[Value]]:
        """Drain, and return the rows by column; {} if there is none. Raises MemoryError."""
        return self._drain(lambda rows: to_columns(self.columns, rows) if rows else {})

    def _drain(self, convert: Callable[[list[Row]], Result]) -> Result:
        # as many as there are now: the training thread may append meanwhile
        entries = [self.entries.popleft() for _ in range(len(self.entries))]
        try:
            if self._build_row is None:
                return convert(entries)
            return convert([row for item in entries if (row := self._build_row(item)) is not None])
        except MemoryError:
            self.entries.extendleft(reversed(entries))
            raise


def to_columns(names: Sequence[str], rows: Sequence[Row]) -> dict[str, list[Value]]:
    """Turn rows into columns; a column without any value is left out."""
    columns: dict[str, list[Value]] = {
        name: list(values)
        for name, values in zip(names, zip(*(row for row, _ in rows), strict=True), strict=True)
    }
    for name in dict.fromkeys(name for _, extra in rows if extra for name in extra):
        columns[name] = [extra.get(name) if extra else None for _, extra in rows]
    return {
        name: values
        for name, values in columns.items()
        if values[0] is not None or values.count(None) < len(values)
    }
