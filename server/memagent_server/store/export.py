"""Export all samples of a run as CSV or Parquet, one row a sample.

1. A few thousand rows are in memory at a time, however long the run is.
2. A file comes in slices of less than a millisecond of work, some of them empty. Between two of
   them, the interpreter is free for the batches of agents.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent.errors import MemagentError
from memagent.wire.columns import Value
from memagent.wire.fields import ColumnKind, kind_of
from memagent_server.store.buckets import as_lists
from memagent_server.store.chunks import unpack_stats
from memagent_server.store.engine import Database
from memagent_server.store.history import chunks_after
from memagent_server.store.models import ChunkRow, StreamRow
from memagent_server.store.models.samples import of_run
from memagent_server.store.rollups import RollupLevels

if TYPE_CHECKING:
    import pyarrow

Format = Literal["csv", "parquet"]
FORMATS: tuple[Format, ...] = ("csv", "parquet")
MIMETYPES: dict[Format, str] = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet"}

PLACE = ("rank", "device", "attempt")
GROUP_ROWS = 65_536
"""Samples in a row group of a Parquet file; so many are held in memory, as columns."""
_FIRST = ("step", "time_s")
_CHUNKS_AT_ONCE = 8
_SLICE_ROWS = 128
_FORMULA = re.compile(r"(?:^|(?<=[;\t\n]))(?=[=+\-@\t\n])")
"""Where a spreadsheet would see a formula begin: some split cells at semicolons and tabs."""


class ExportError(MemagentError):
    """This server cannot write that format."""


def export(database: Database, run_id: str, form: Format) -> Generator[bytes, None, None]:
    """Yield the pieces of a file. Raises ExportError at once if a package is missing.

    The file has the stored samples of each stream (rank, device, attempt; scalars are a device) and
    all columns of the run. Each few chunks are read in a transaction of their own, so that a slow
    reader blocks no writer. Samples that arrive meanwhile may be included.
    """
    if form == "csv":
        return _csv(database, run_id)
    return _parquet(database, run_id, _arrow())


def _csv(database: Database, run_id: str) -> Generator[bytes, None, None]:
    """Yield a header, then the samples. Missing values are empty."""
    with database.read() as session:
        streams, names = _streams(session, run_id), list((yield from _columns(session, run_id)))
    yield _text([*PLACE, *names]).encode()
    for stream in streams:
        place = _text([stream.rank, _escape_formula(stream.device), stream.attempt])[:-1]
        for columns in _samples(database, stream):
            yield b""
            for first in range(0, len(columns["step"]), _SLICE_ROWS):
                rows = {name: of[first : first + _SLICE_ROWS] for name, of in columns.items()}
                yield _lines(place, names, rows).encode()


def _lines(place: str, names: Sequence[str], columns: Mapping[str, list[Value]]) -> str:
    """Return a line for each row: a third of the cost of csv, which would look at each number."""
    missing = [""] * len(columns["step"])
    cells = [_cells(columns[name]) if name in columns else missing for name in names]
    return "".join(f"{place},{','.join(row)}\n" for row in zip(*cells, strict=True))


def _cells(values: list[Value]) -> list[str]:
    if None in values:
        return ["" if value is None else repr(value) for value in values]
    return list(map(repr, values))


def _parquet(database: Database, run_id: str, arrow: Any) -> Generator[bytes, None, None]:
    with database.read() as session:
        streams, kinds = _streams(session, run_id), (yield from _columns(session, run_id))
    schema = arrow.schema(
        [("rank", arrow.int32()), ("device", arrow.string()), ("attempt", arrow.int64())]
        + [
            (name, arrow.int64() if kind == "int" else arrow.float64())
            for name, kind in kinds.items()
        ]
    )
    file = _PieceBuffer()
    with arrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for stream in streams:
            batches: list[pyarrow.RecordBatch] = []
            for columns in _samples(database, stream):
                batches.append(_batch(arrow, schema, stream, columns))
                yield b""
                if sum(batch.num_rows for batch in batches) >= GROUP_ROWS:
                    writer.write_table(arrow.Table.from_batches(batches, schema))
                    batches.clear()
                    yield file.drain()
            if batches:
                writer.write_table(arrow.Table.from_batches(batches, schema))
                yield file.drain()
    yield file.drain()


class _PieceBuffer(io.RawIOBase):
    """A file that is written at one end and drained at the other."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def drain(self) -> bytes:
        """Return what was written since the last call."""
        piece = b"".join(self._pieces)
        self._pieces.clear()
        return piece


def _batch(arrow: Any, schema: Any, stream: StreamRow, columns: Mapping[str, list[Value]]) -> Any:
    rows = len(columns["step"])
    place = {
        "rank": [stream.rank] * rows,
        "device": [stream.device] * rows,
        "attempt": [stream.attempt] * rows,
    }
    nothing: list[Value] = [None] * rows
    return arrow.record_batch(
        [
            arrow.array(
                place[field.name] if field.name in place else columns.get(field.name, nothing),
                field.type,
            )
            for field in schema
        ],
        schema=schema,
    )


def _arrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ExportError(
            "Parquet needs the package pyarrow: pip install 'memagent[parquet]'"
        ) from error
    return pyarrow


def _streams(session: Session, run_id: str) -> Sequence[StreamRow]:
    query = select(StreamRow).where(StreamRow.run_id == run_id)
    return session.scalars(query.order_by(StreamRow.attempt, StreamRow.rank, StreamRow.id)).all()


def _columns(session: Session, run_id: str) -> Generator[bytes, None, dict[str, ColumnKind]]:
    """Return the kind of each column of the run: step and time first, then by name."""
    kinds: dict[str, ColumnKind] = {}
    for stream in _streams(session, run_id):
        for block in RollupLevels(session, run_id, stream.id).each_block(0):
            for name, levels in block.stats.items():
                _add_kind(kinds, name, as_lists(levels[0]))
            yield b""
    stats = select(ChunkRow.stats).where(*of_run(ChunkRow, run_id), ChunkRow.stats != b"")
    for packed in session.scalars(stats.execution_options(yield_per=500)):
        for name, statistics in unpack_stats(packed).items():
            _add_kind(kinds, name, statistics)
        yield b""
    return {
        name: kinds.get(name, kind_of(name)) for name in [*_FIRST, *sorted(kinds.keys() - _FIRST)]
    }


def _add_kind(kinds: dict[str, ColumnKind], name: str, values: Sequence[Value]) -> None:
    """Add a column's kind. A column with a float in any stream is a float in all."""
    value = next((value for value in values if value is not None), None)
    if isinstance(value, float):
        kinds[name] = "float"
    else:
        kinds.setdefault(name, "int" if value is not None else kind_of(name))


def _samples(database: Database, stream: StreamRow) -> Iterator[dict[str, list[Value]]]:
    after_seq = -1
    while True:
        with database.read() as session:
            chunks = chunks_after(session, stream, after_seq, _CHUNKS_AT_ONCE)
        for chunk in chunks:
            if columns := chunk.unpack().columns:
                yield columns
        if len(chunks) < _CHUNKS_AT_ONCE:
            return
        after_seq = chunks[-1].seq


def _escape_formula(text: str) -> str:
    """Put an apostrophe before a formula, so that spreadsheets show it as text.

    Line breaks become \\n: csv leaves a single \\r unquoted, which would begin a row.
    """
    return _FORMULA.sub("'", text.replace("\r\n", "\n").replace("\r", "\n"))


def _text(row: Sequence[object]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerow(row)
    return file.getvalue()
