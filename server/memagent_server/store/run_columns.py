"""Columns of runs beside the fixed ones of a list: settings and logged scalars, by the names that
filters use.

1. Names come from the runs of a page: reading all would take time.
2. `differing` stands for the settings in which the runs of a page differ.
3. A scalar's value is the newest one of the lowest rank that logs it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from msgspec import json
from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent.errors import FilterError
from memagent.filters.columns import RUN_COLUMNS, column_of
from memagent.filters.expression import Expression, RunColumn, columns_of, config_values
from memagent.wire.fields import SCALARS_STREAM
from memagent_server.store.models import RunRow, StreamRow
from memagent_server.store.run_filter import PEAK_OF_RUN

DIFFERING = "differing"
MAX_COLUMNS = 12
MAX_NAMES = 100
MAX_COMPARED = 1_000
"""Settings of each run that are compared: a config may have 50,000."""
_OF_EACH_SAMPLE = {"step", "time_s"}
_BARE_NAME = re.compile(r"[\w/@-]+")
_CHOICE = re.compile(r"""(?:[^,"]|"[^"]*"?)+""")
"""Text between two commas that are outside of quotes."""


@dataclass(frozen=True)
class ColumnTable:
    """The names of columns, and each run's values in that order; None if a run has none."""

    names: list[str] = field(default_factory=list)
    values: Mapping[str, list[Any]] = field(default_factory=dict)


def column_names(session: Session, run_ids: Collection[str]) -> list[str]:
    """Return the columns of these runs that a filter can name, as it spells them.

    There are at most MAX_NAMES settings and as many scalars.
    """
    configs = session.scalars(select(RunRow.config).where(RunRow.id.in_(run_ids)))
    settings = {name for config in configs for name, _ in _leaves(config, "config")}
    logged = {name for latest in _scalars(session, run_ids).values() for name in latest}
    scalars = _leaves(dict.fromkeys(sorted(logged - _OF_EACH_SAMPLE)), "scalar")
    named = (name for name, _ in islice(scalars, MAX_NAMES))
    return [*RUN_COLUMNS, *sorted(settings)[:MAX_NAMES], *named]


def similar_columns(
    session: Session, run_ids: Collection[str], expression: Expression
) -> dict[RunColumn, str]:
    """Return the columns of a filter that none of these runs has, each with one that ends alike:
    `config.optimizer.lr` for `config.lr`.
    """
    known = {column_of(name): name for name in column_names(session, run_ids)}
    wrong = [column for column in columns_of(expression) if column not in known]
    similar = {
        column: next((name for other, name in known.items() if _ends_alike(column, other)), None)
        for column in wrong
        if column.source != "run"
    }
    return {column: other for column, other in similar.items() if other is not None}


def _ends_alike(column: RunColumn, other: RunColumn) -> bool:
    return other.source != "run" and column.path[-1:] == other.path[-1:]


def column_table(session: Session, run_ids: Sequence[str], text: str) -> ColumnTable:
    """Return the named columns of runs. Raises FilterError for a name of no column."""
    names = split_names(text)
    if not names:
        return ColumnTable()
    columns = {name: column_of(name, "columns") for name in names if name != DIFFERING}
    rows = session.scalars(select(RunRow).where(RunRow.id.in_(run_ids))).all()
    if DIFFERING in names:
        columns |= {name: column_of(name) for name in _differing([row.config for row in rows])}
    if len(columns) > MAX_COLUMNS and DIFFERING not in names:
        raise FilterError(f"columns: choose at most {MAX_COLUMNS}, not {len(columns)}.")
    first = dict(islice(columns.items(), MAX_COLUMNS))
    needs_scalars = any(column.source == "scalar" for column in first.values())
    scalars = _scalars(session, run_ids) if needs_scalars else {}
    peaks = _peaks(session, run_ids) if "peak_bytes" in first else {}
    values = {
        row.id: [
            peaks.get(row.id) if name == "peak_bytes" else _value(column, row, scalars)
            for name, column in first.items()
        ]
        for row in rows
    }
    return ColumnTable(list(first), values)


def unknown_names(text: str) -> dict[str, str]:
    """Return the names of no column, and what is wrong with each."""
    mistakes = {}
    for name in split_names(text):
        try:
            column_of(name, "columns")
        except FilterError as error:
            mistakes[name] = str(error)
    mistakes.pop(DIFFERING, None)
    return mistakes


def split_names(text: str) -> list[str]:
    """Return the names between commas that are outside of quotes."""
    return [name for name in map(str.strip, _CHOICE.findall(text)) if name]


def spelling_of(column: RunColumn) -> str:
    """Return a column's name as filters write it."""
    if column.source == "run":
        return column.path[0]
    path = (name if _BARE_NAME.fullmatch(name) else f'"{name}"' for name in column.path)
    return ".".join((column.source, *path))


def _value(column: RunColumn, run: RunRow, scalars: Mapping[str, Mapping[str, Any]]) -> Any:
    if column.source == "run":
        return getattr(run, column.path[0])
    of = run.config if column.source == "config" else scalars.get(run.id, {})
    return next(iter(config_values(of, column.path)), None)


def _peaks(session: Session, run_ids: Collection[str]) -> dict[str, int]:
    query = select(RunRow.id, PEAK_OF_RUN).where(RunRow.id.in_(run_ids))
    return dict(session.execute(query).all())


def _differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings, by name, that not all of these have with the same value."""
    spellings: dict[str, list[bytes]] = {}
    for config in configs:
        for name, value in islice(_leaves(config, "config"), MAX_COMPARED):
            spellings.setdefault(name, []).append(json.encode(value))
    return sorted(
        name
        for name, values in spellings.items()
        if len(set(values)) > 1 or len(values) < len(configs)
    )


def _scalars(session: Session, run_ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return {run: {scalar: newest value}}."""
    newest = (
        select(StreamRow.run_id, StreamRow.latest)
        .where(
            StreamRow.run_id.in_(run_ids), StreamRow.is_current, StreamRow.kind == SCALARS_STREAM
        )
        .order_by(StreamRow.rank.desc())
    )
    scalars: dict[str, dict[str, Any]] = {}
    for run_id, latest in session.execute(newest):
        # the lowest rank comes last
        scalars.setdefault(run_id, {}).update(latest)
    return scalars


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the path of each value, and the value. A key that has a quote can't be named."""
    for key, value in values.items():
        if not key or '"' in key:
            continue
        name = f"{prefix}.{key}" if _BARE_NAME.fullmatch(key) else f'{prefix}."{key}"'
        if isinstance(value, dict):
            yield from _leaves(value, name)
        else:
            yield name, value
