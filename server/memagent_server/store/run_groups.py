"""Groups of runs by the values of columns, nested, with figures of other columns.

1. A group is the runs of a list that have the same values in the first columns of `by`. Runs
   without a value are one, the last. Of a scalar with several ranks, the lowest counts.
2. Figures are those of the runs whose value is a number. If none is, the commonest value counts.
3. Groups come in the order of a tree: each is followed by its subgroups. There are at most `limit`
   on the first level and in each group, and MAX_GROUPS together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from sqlalchemy.orm import Session

from memagent.errors import FilterError
from memagent.filters.columns import column_of
from memagent.filters.expression import RunColumn
from memagent_server.schemas.run_groups import GroupFigure, RunGroup, RunGroups
from memagent_server.store.coded_column import MISSING, CodedColumn, Floats, Key, Rows, value_of
from memagent_server.store.run_columns import MAX_COLUMNS, split_names
from memagent_server.store.run_keys import PEAK_BYTES
from memagent_server.store.run_list import RunQuery, search_runs, select_runs, words_of
from memagent_server.store.run_table import STATUS, TableView

MAX_LEVELS = 3
MAX_GROUPS = 1_000


def group_runs(
    session: Session, query: RunQuery, by: str, *, columns: str = "", order: str = "-runs"
) -> RunGroups:
    """Return the groups of a query's runs, at most `query.limit` of each level.

    `by` and `columns` are names as in filters, separated by commas. `order` is `runs`, `value`, or
    one of `columns`, whose mean counts; after "-", the highest come first. Raises FilterError.
    """
    names = _named(by, "by", MAX_LEVELS)
    figures = _named(columns, "columns", MAX_COLUMNS)
    if not names:
        raise FilterError("by: name 1 to 3 columns, separated by commas, as in config.lr,project.")
    if order.removeprefix("-") not in ("runs", "value", *figures):
        raise FilterError(
            f"sort: {order!r:.100} is neither runs, nor value, nor one of the columns."
        )
    view, mask = select_runs(session, query, [*names.values(), *figures.values(), PEAK_BYTES])
    rows = np.flatnonzero(mask)
    if words := words_of(query.q or ""):
        ids = [view.ids[row] for row in rows.tolist()]
        matches = search_runs(session, ids, words)
        rows = rows[np.array([run_id in matches for run_id in ids], dtype=bool)]
    tree = _Tree(view, names, figures, order, query.limit)
    groups: list[RunGroup] = []
    # lazy: the figures of groups that are left out are never computed
    for group in tree.groups(rows, {}):
        if len(groups) == MAX_GROUPS:
            break
        groups.append(group)
    return RunGroups(groups, tree.count(rows, 0))


def _named(text: str, argument: str, most: int) -> dict[str, RunColumn]:
    columns = {name: column_of(name, argument) for name in split_names(text)}
    if len(columns) > most:
        raise FilterError(f"{argument}: choose at most {most} columns, not {len(columns)}.")
    return columns


@dataclass(frozen=True)
class _Tree:
    view: TableView
    by: Mapping[str, RunColumn]
    figures: Mapping[str, RunColumn]
    order: str
    limit: int

    def groups(self, rows: Rows, key: Mapping[str, Any]) -> Iterator[RunGroup]:
        """Yield the groups of some runs that share the values of `key`, and their subgroups."""
        name = list(self.by)[len(key)]
        column = self.view.columns[self.by[name]]
        codes = column.codes[rows]
        # one sort splits the rows: a mask for each group would read all of them again
        by_code = np.argsort(codes, kind="stable")
        distinct, first = np.unique(codes[by_code], return_index=True)
        parts = np.split(rows[by_code], first[1:])[: len(first)]
        for place in self._ordered(distinct.tolist(), parts)[: self.limit]:
            code, part = distinct[place], parts[place]
            value = None if code == MISSING else json_value(column.keys[code])
            longer = {**key, name: value}
            is_last = len(longer) == len(self.by)
            yield self._group(part, longer, 0 if is_last else self.count(part, len(longer)))
            if not is_last:
                yield from self.groups(part, longer)

    def count(self, rows: Rows, level: int) -> int:
        """Return the number of groups of some runs by the column of a level."""
        column = self.view.columns[list(self.by.values())[level]]
        return len(np.unique(column.codes[rows]))

    def _ordered(self, distinct: Sequence[int], parts: Sequence[Rows]) -> list[int]:
        name, sign = self.order.removeprefix("-"), -1 if self.order.startswith("-") else 1
        if name == "runs":
            weights: Sequence[float] = [len(part) for part in parts]
        elif name == "value":
            # codes rise as their values do
            weights = distinct
        else:
            column = self.view.columns[self.figures[name]]
            weights = [_mean(column.numbers(part)) for part in parts]

        def key(place: int) -> tuple[bool, float, int]:
            is_missing = distinct[place] == MISSING or math.isnan(weights[place])
            return is_missing, 0.0 if is_missing else sign * weights[place], place

        return sorted(range(len(parts)), key=key)

    def _group(self, rows: Rows, key: dict[str, Any], groups: int) -> RunGroup:
        statuses = self.view.columns[STATUS]
        codes, counts = np.unique(statuses.codes[rows], return_counts=True)
        return RunGroup(
            key=key,
            runs=len(rows),
            groups=groups,
            statuses={
                str(statuses.keys[code][1]): int(count)
                for code, count in zip(codes, counts, strict=True)
            },
            peak_bytes=_figure(self.view.columns[PEAK_BYTES], rows),
            columns={
                name: _figure(self.view.columns[column], rows)
                for name, column in self.figures.items()
            },
        )


def _figure(column: CodedColumn, rows: Rows) -> GroupFigure:
    values = column.numbers(rows)
    values = values[~np.isnan(values)]
    if not len(values):
        return GroupFigure(0, None, None, None, *_commonest(column, rows))
    return GroupFigure(
        len(values), _finite(values.min()), _finite(_mean(values)), _finite(values.max())
    )


def _commonest(column: CodedColumn, rows: Rows) -> tuple[Any, int]:
    """Return the most frequent value of some runs, and the number of different ones."""
    codes = column.codes[rows]
    distinct, counts = np.unique(codes[codes != MISSING], return_counts=True)
    if not len(distinct):
        return None, 0
    return json_value(column.keys[distinct[counts.argmax()]]), len(distinct)


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    # the sum of two large numbers is infinite, and that of both infinities isn't a number
    with np.errstate(over="ignore", invalid="ignore"):
        return float(known.mean()) if len(known) else math.nan


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def json_value(key: Key) -> Any:
    """Return the value of a key; a list or an object that was cut is a text."""
    value = value_of(key)
    if not isinstance(value, msgspec.Raw):
        return value if not isinstance(value, float) or math.isfinite(value) else str(value)
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return f"{bytes(value).decode()}…"
