"""Runs of MLflow's SQLite database, read-only and by SQL: its tables are those of MLflow 1.0."""

from __future__ import annotations

import math
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from memagent.errors import MemagentError
from memagent.importer.mlflow_run import MetricPoint, TrackingRun
from memagent.importer.source_files import TEXT_BYTES, files_below, open_regular
from memagent.importer.source_run import CONFIG_VALUES

VALUE_BYTES = 2**20
"""Limit for a text or a row that SQLite loads. Python 3.10 can't set it."""
_MAGIC = b"SQLite format 3\0"
_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_DAMAGE = (sqlite3.Error, OSError, UnicodeDecodeError)
"""Python can't decode SQLite's message if that quotes a damaged schema."""
_TABLES = ("experiments", "metrics", "params", "runs", "tags")
_RUNS = """
    SELECT runs.run_uuid, runs.status, runs.name, experiments.name, runs.user_id,
           runs.start_time, runs.end_time
    FROM runs LEFT JOIN experiments ON experiments.experiment_id = runs.experiment_id
    WHERE runs.lifecycle_stage = 'active' ORDER BY runs.start_time, runs.run_uuid
"""
_POINTS = """
    SELECT key, step, timestamp, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY rowid
"""


def is_source(name: str) -> bool:
    return name.endswith(_SUFFIXES)


def read_runs(path: Path, problems: list[str]) -> Iterator[TrackingRun]:
    """Yield the runs of the databases at or below a path."""
    for file in files_below(path, lambda name: path.is_file() or is_source(name)):
        if not _is_database(file):
            continue
        try:
            yield from _read_database(file, is_certain=path.is_file())
        except MemagentError as error:
            problems.append(str(error))
        except _DAMAGE as error:
            problems.append(f"{file}: {_reason(error)}")


def _is_database(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except (MemagentError, OSError):
        return False


def _read_database(path: Path, *, is_certain: bool) -> Iterator[TrackingRun]:
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as database:
        # a database of unknown origin may have views and triggers that call functions
        database.execute("PRAGMA trusted_schema = OFF")
        if sys.version_info >= (3, 11):
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
        database.text_factory = lambda text: text.decode(errors="replace")
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        if not set(_TABLES) <= {name for (name,) in tables}:
            if is_certain:
                raise MemagentError(f"{path} is a database, but not one of MLflow")
            return
        for run_id, status, name, experiment, user, start_ms, end_ms in database.execute(_RUNS):
            run = TrackingRun(
                place=path,
                run_id=str(run_id),
                status=str(status),
                name=_text(name),
                experiment=_text(experiment),
                user=_text(user),
                start_ms=start_ms,
                end_ms=end_ms,
                parameters=_texts(database, "params", run_id),
                tags=_texts(database, "tags", run_id),
                points=(),
            )
            run.points = _points(database, run_id, run)
            yield run


def _texts(database: sqlite3.Connection, table: str, run_id: Any) -> dict[str, str]:
    query = f"SELECT key, substr(value, 1, ?) FROM {table} WHERE run_uuid = ? LIMIT ?"  # noqa: S608  # nosec B608
    rows = database.execute(query, (TEXT_BYTES, run_id, CONFIG_VALUES))
    return {str(key): str(value) for key, value in rows if value is not None}


def _points(database: sqlite3.Connection, run_id: Any, run: TrackingRun) -> Iterator[MetricPoint]:
    """Yield the points in the order in which they were logged, up to the first damage."""
    try:
        for key, step, time_ms, value, is_nan in database.execute(_POINTS, (run_id,)):
            number = value
            if is_nan:
                number = math.nan
            # MLflow stores infinity as the largest float
            elif value in (sys.float_info.max, -sys.float_info.max):
                number = math.copysign(math.inf, value)
            yield str(key), step, time_ms, number
    except _DAMAGE as error:
        run.notes.append(
            f"{run.place}: metrics of run {run.run_id} cannot be read: {_reason(error)}"
        )


def _reason(error: Exception) -> str:
    return "its schema is damaged" if isinstance(error, UnicodeDecodeError) else str(error)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
