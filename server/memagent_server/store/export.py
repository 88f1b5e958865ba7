"""Export all samples of a run as CSV or Parquet, one row a sample.

1. A few thousand rows are in memory at a time, however long the run is.
2. A server leaves exports to processes of low priority, and the interpreter to agents' batches. The
   first starts a process that imports what they need and forks one for each. It ends with this one.
3. What they have made waits in a pipe: a reader that stops stops its process.
"""

from __future__ import annotations

import contextlib
import csv
import io
import multiprocessing
import os
import re
import signal
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from importlib.util import find_spec
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
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
NICENESS = 10
"""A tenth of the processor time of others where they take all."""
MAX_FOLDER_BYTES = 76
"""Python puts a socket there to ask for forks. A socket's path has at most 107 bytes."""
_FORMULA = re.compile(r"(?:^|(?<=[;\t\n]))(?=[=+\-@\t\n])")
"""Where a spreadsheet would see a formula begin: some split cells at semicolons and tabs."""


class ExportError(MemagentError):
    """This server cannot write that format, or the file to its end."""


def export(database: Database, run_id: str, form: Format) -> Generator[bytes, None, None]:
    """Yield the pieces of a file. Raises ExportError at once: see `require`.

    The file has the stored samples of each stream (rank, device, attempt; scalars are a device) and
    all columns of the run. Each few chunks are read in a transaction of their own, so that a slow
    reader blocks no writer. Samples that arrive meanwhile may be included.
    """
    require(form)
    return (_csv if form == "csv" else _parquet)(database, run_id)


def require(form: Format) -> None:
    """Raise ExportError if a package is missing that writes this format."""
    if form == "parquet" and find_spec("pyarrow") is None:
        raise ExportError("Parquet needs the package pyarrow: pip install 'memagent[parquet]'")


def export_by_process(url: str, run_id: str, form: Format) -> Generator[bytes, None, None]:
    """Yield the pieces of a file that a process makes, which begins with the first.

    Raises ExportError if that process ends before the file does.
    """
    context = _context()
    receiver, sender = context.Pipe(duplex=False)
    with receiver:
        process = context.Process(target=_send, args=(url, run_id, form, sender), daemon=True)
        process.start()
        sender.close()
        try:
            while piece := receiver.recv_bytes():
                yield piece
        except EOFError:
            raise ExportError(f"the process that exports {run_id} has ended") from None
        finally:
            process.kill()
            process.join()


def _context() -> ForkServerContext | SpawnContext:
    """Choose forks, or new processes where the folder of temporary files has too long a path."""
    if len(os.fsencode(tempfile.gettempdir())) > MAX_FOLDER_BYTES:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _send(url: str, run_id: str, form: Format, pipe: Connection) -> None:
    """Send the pieces of a file, and an empty one at its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the server ends its processes
    os.nice(NICENESS)
    with contextlib.suppress(BrokenPipeError):
        for piece in export(Database(url), run_id, form):
            if piece:
                pipe.send_bytes(piece)
        pipe.send_bytes(b"")


def _csv(database: Database, run_id: str) -> Generator[bytes, None, None]:
    """Yield a header, then the samples. Missing values are empty."""
    with database.read() as session:
        streams, names = _streams(session, run_id), list(_columns(session, run_id))
    yield _text([*PLACE, *names]).encode()
    for stream in streams:
        place = _text([stream.rank, _escape_formula(stream.device), stream.attempt])[:-1]
        for columns in _samples(database, stream):
            yield _lines(place, names, columns).encode()


def _lines(place: str, names: Sequence[str], columns: Mapping[str, list[Value]]) -> str:
    """Return a line for each row: a third of the cost of csv, which would look at each number."""
    missing = [""] * len(columns["step"])
    cells = [_cells(columns[name]) if name in columns else missing for name in names]
    return "".join(f"{place},{','.join(row)}\n" for row in zip(*cells, strict=True))


def _cells(values: list[Value]) -> list[str]:
    if None in values:
        return ["" if value is None else repr(value) for value in values]
    return list(map(repr, values))


def _parquet(database: Database, run_id: str) -> Generator[bytes, None, None]:
    import pyarrow as arrow
    import pyarrow.parquet

    with database.read() as session:
        streams, kinds = _streams(session, run_id), _columns(session, run_id)
    schema = arrow.schema(
        [("rank", arrow.int32()), ("device", arrow.string()), ("attempt", arrow.int64())]
        + [
            (name, arrow.int64() if kind == "int" else arrow.float64())
            for name, kind in kinds.items()
        ]
    )
    file = _PieceBuffer()
    with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
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


def _streams(session: Session, run_id: str) -> Sequence[StreamRow]:
    query = select(StreamRow).where(StreamRow.run_id == run_id)
    return session.scalars(query.order_by(StreamRow.attempt, StreamRow.rank, StreamRow.id)).all()


def _columns(session: Session, run_id: str) -> dict[str, ColumnKind]:
    """Return the kind of each column of the run: step and time first, then by name."""
    kinds: dict[str, ColumnKind] = {}
    for stream in _streams(session, run_id):
        for block in RollupLevels(session, run_id, stream.id).each_block(0):
            for name, levels in block.stats.items():
                _add_kind(kinds, name, as_lists(levels[0]))
    stats = select(ChunkRow.stats).where(*of_run(ChunkRow, run_id), ChunkRow.stats != b"")
    for packed in session.scalars(stats.execution_options(yield_per=500)):
        for name, statistics in unpack_stats(packed).items():
            _add_kind(kinds, name, statistics)
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
