"""Stored values of runs as keys of `coded_column`: columns of the run, settings, scalars, peaks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from msgspec import ValidationError, json
from sqlalchemy import Select, Subquery, case, func, select
from sqlalchemy.orm import Session

from memagent.filters.expression import RunColumn
from memagent.wire.fields import SCALARS_STREAM
from memagent_server.store.coded_column import MAX_TEXT, Key, json_key, key_of, tags_key
from memagent_server.store.models import RunRow, StreamRow
from memagent_server.store.run_filter import Leaf

_CUT = ("text", "string", "array", "object")
"""JSON types of both databases whose text may be long."""
PEAK_BYTES = RunColumn("run", ("peak_bytes",))
"""The peak on the device of a run that is nearest to its limit, as `run_filter.PEAK_OF_RUN`."""


@dataclass(frozen=True)
class RunKeys:
    """The first key of each run that has one, and further ones: of ranks with the same scalar."""

    first: dict[str, Key] = field(default_factory=dict)
    others: dict[str, Sequence[Key]] = field(default_factory=dict)


def read_keys(
    session: Session, columns: Collection[RunColumn], some: Subquery | None
) -> Mapping[RunColumn, RunKeys]:
    """Return the keys of columns, for the runs whose ids are in a relation's column `first`, or for
    all.
    """
    of_row = [column for column in columns if column.source != "scalar" and column != PEAK_BYTES]
    keys_by_column = _row_keys(session, of_row, some) if of_row else {}
    for column in columns:
        if column.source == "scalar":
            keys_by_column[column] = _scalar_keys(session, column, some)
    if PEAK_BYTES in columns:
        keys_by_column[PEAK_BYTES] = _peak_keys(session, some)
    return keys_by_column


def _row_keys(
    session: Session, columns: Sequence[RunColumn], some: Subquery | None
) -> dict[RunColumn, RunKeys]:
    """Read columns of the runs' rows at once: each row is read once."""
    dialect = session.get_bind().dialect.name
    selected: list[Any] = []
    for column in columns:
        if column.source == "config":
            selected += _leaf_columns(RunRow.config, column, dialect)
        else:
            name = column.path[0]
            value = getattr(RunRow, name)
            selected.append(func.substr(value, 1, MAX_TEXT) if name == "error" else value)
    keys_by_column = {column: RunKeys() for column in columns}
    for run_id, *values in session.execute(_of_some(select(RunRow.id, *selected), RunRow.id, some)):
        rest = iter(values)
        for column, keys in keys_by_column.items():
            key = _config_key(next(rest), next(rest)) if column.source == "config" else None
            if column.source == "run":
                value = next(rest)
                key = tags_key(value) if isinstance(value, list) else key_of(value)
            if key is not None:
                keys.first[run_id] = key
    return keys_by_column


def _scalar_keys(session: Session, column: RunColumn, some: Subquery | None) -> RunKeys:
    """Read the newest values that the ranks of the newest launch have logged, the lowest first."""
    dialect = session.get_bind().dialect.name
    leaf = _leaf_columns(StreamRow.latest, column, dialect)
    query = (
        select(StreamRow.run_id, *leaf)
        .where(StreamRow.is_current, StreamRow.kind == SCALARS_STREAM)
        .order_by(StreamRow.rank)
    )
    keys = RunKeys()
    for run_id, kind, text in session.execute(_of_some(query, StreamRow.run_id, some)):
        key = _config_key(kind, text)
        if key is not None and keys.first.setdefault(run_id, key) is not key:
            keys.others[run_id] = [*keys.others.get(run_id, ()), key]
    return keys


def _peak_keys(session: Session, some: Subquery | None) -> RunKeys:
    query: Any = select(StreamRow.run_id, StreamRow.peak_bytes, StreamRow.limit_bytes).where(
        StreamRow.is_current, StreamRow.peak_bytes.is_not(None)
    )
    highest: dict[str, tuple[float, int]] = {}
    for run_id, peak, limit in session.execute(_of_some(query, StreamRow.run_id, some)):
        fullness = (peak / limit if limit else 0.0, peak)
        highest[run_id] = max(highest.get(run_id, fullness), fullness)
    keys = {run_id: key_of(peak) for run_id, (_, peak) in highest.items()}
    return RunKeys({run_id: key for run_id, key in keys.items() if key is not None})


def _of_some(query: Select[Any], run_id: Any, some: Subquery | None) -> Select[Any]:
    return query if some is None else query.where(run_id.in_(select(some.c.first)))


def _leaf_columns(column: Any, named: RunColumn, dialect: str) -> list[Any]:
    leaf = Leaf.at(column, named.path, dialect)
    # numbers stay as they are: SQLite's text of one is rounded
    text = case((leaf.kind.in_(_CUT), func.substr(leaf.text, 1, MAX_TEXT)), else_=leaf.text)
    return [leaf.kind, text]


def _config_key(kind: str | None, text: Any) -> Key | None:
    """Return the key of a JSON value by the database's name of its type; None if it's missing."""
    read = _READ.get(kind or "null", json_key)
    return read(text)


def _of_number(text: Any) -> Key | None:
    if not isinstance(text, str):
        return key_of(text)
    try:
        return key_of(json.decode(text))
    except ValidationError:
        # PostgreSQL has its text, and a double doesn't hold 1e400
        return key_of(inf if text[0] != "-" else -inf)


_READ: dict[str, Callable[[Any], Key | None]] = {
    "null": lambda _: None,
    "true": lambda _: key_of(True),
    "false": lambda _: key_of(False),
    "boolean": lambda text: key_of(text == "true"),
    "text": key_of,
    "string": key_of,
    "integer": _of_number,
    "real": _of_number,
    "number": _of_number,
}
