"""Samples of a run, complete and unsampled, for polars, pandas, arrow, numpy or plain Python.

A row is a sample of one rank and device in one launch, in order of arrival; a column that a sample
lacks is missing there. Chunks are decoded by two threads: numpy frees the interpreter's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any

from memagent.errors import MemagentError
from memagent.wire.sample_stream import SampleFrame

if TYPE_CHECKING:
    from memagent.arrays.sample_blocks import SampleBlock

_FIRST = ("step", "time_s")
_THREADS = 2
_CHUNKS_PER_TASK = 16
_MAX_WAITING = 8
"""Tasks that are read ahead of the decoder."""


@dataclass(frozen=True)
class History:
    """Rows of samples: `columns` are (values, which are present; None if all are).

    `devices` are the names that the codes in the column `device` stand for. `missing_samples`
    counts those that retention has deleted; None where only some steps were read.
    """

    columns: dict[str, tuple[Any, Any]]
    devices: Sequence[str]
    missing_samples: int | None = None

    def __len__(self) -> int:
        return len(self.columns["rank"][0])

    def __repr__(self) -> str:
        return f"<History of {len(self):,} samples: {', '.join(self.columns)}>"

    def to_numpy(self) -> dict[str, Any]:
        """Return an array a column; one with missing values is float, with NaN for them."""
        numpy = _require("numpy")
        names = numpy.array(self.devices, dtype=object)
        return {
            name: names[values]
            if name == "device"
            else values
            if present is None
            else numpy.where(present, values, numpy.nan)
            for name, (values, present) in self.columns.items()
        }

    def to_dict(self) -> dict[str, list[Any]]:
        """Return a list a column, None for missing values."""
        from memagent.arrays.chunk_arrays import listed

        lists: dict[str, list[Any]] = {
            name: listed(values, present) for name, (values, present) in self.columns.items()
        }
        return {**lists, "device": [self.devices[code] for code in lists["device"]]}

    def to_polars(self) -> Any:
        """Return a polars.DataFrame."""
        polars = _require("polars")
        series = []
        for name, (values, present) in self.columns.items():
            if name == "device":
                # one text a device: rows share it
                column = polars.Series(name, self.devices, dtype=polars.String).gather(values)
            else:
                column = polars.Series(name, values)
                if present is not None:
                    column = polars.select(
                        polars.when(polars.Series(present)).then(column).alias(name)
                    ).to_series()
            series.append(column)
        return polars.DataFrame(series)

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table."""
        arrow = _require("pyarrow")
        arrays = {
            name: arrow.array(values, mask=None if present is None else ~present)
            for name, (values, present) in self.columns.items()
            if name != "device"
        }
        codes = arrow.array(self.columns["device"][0])
        names = arrow.array(self.devices, arrow.string())
        arrays["device"] = arrow.DictionaryArray.from_arrays(codes, names)
        return arrow.table({name: arrays[name] for name in self.columns})

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame; whole numbers with missing values are of type Int64."""
        pandas = _require("pandas")
        return pandas.DataFrame(
            {name: self._pandas_column(pandas, name) for name in self.columns}, copy=False
        )

    def _pandas_column(self, pandas: Any, name: str) -> Any:
        values, present = self.columns[name]
        if name == "device":
            return pandas.Categorical.from_codes(values, list(self.devices))
        if present is None:
            return values
        if values.dtype.kind == "i":
            return pandas.arrays.IntegerArray(values, ~present)
        return pandas.Series(values).where(present)


def read_history(
    frames: Iterable[SampleFrame],
    *,
    columns: Collection[str] | None,
    first: int | None,
    last: int | None,
    expected_samples: int | None,
    advance: Callable[[int], None],
) -> History:
    """Decode frames to a history of the named columns (default: all) and steps `first` to `last`.

    Streams without any of the columns are left out. `expected_samples` are those of the streams,
    None if only some are wanted. `advance` gets the rows read so far.
    """
    _require("numpy")
    from memagent.arrays.sample_blocks import block_of, joined

    wanted = None if columns is None else frozenset((*_FIRST, *columns))
    blocks: list[SampleBlock] = []
    rows = 0
    for block in _in_threads(lambda frame: block_of(frame, wanted, first, last), frames):
        rows += block.rows
        blocks.append(block)
        advance(rows)
    missing = None if expected_samples is None else max(0, expected_samples - rows)
    if columns is not None:
        # a stream that has one of the columns keeps all of its rows
        places = {block.place for block in blocks if not block.names.isdisjoint(columns)}
        blocks = [block for block in blocks if block.place in places]
    order = None if columns is None else [*_FIRST, *columns]
    values, devices = joined(blocks, order)
    return History(values, devices, missing)


def _in_threads(
    decode: Callable[[SampleFrame], SampleBlock | None], frames: Iterable[SampleFrame]
) -> Iterator[SampleBlock]:
    """Yield the decoded frames in order, a bounded number of tasks in progress."""
    waiting: deque[Future[list[SampleBlock]]] = deque()
    remaining = iter(frames)
    with ThreadPoolExecutor(_THREADS, "memagent-history") as executor:
        while task := list(islice(remaining, _CHUNKS_PER_TASK)):
            waiting.append(executor.submit(_decoded, decode, task))
            if len(waiting) >= _MAX_WAITING:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _decoded(
    decode: Callable[[SampleFrame], SampleBlock | None], task: Sequence[SampleFrame]
) -> list[SampleBlock]:
    return [block for block in map(decode, task) if block is not None]


def _require(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise MemagentError(f"This needs the package {package}: pip install {package}.") from error
