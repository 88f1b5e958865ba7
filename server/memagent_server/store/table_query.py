"""Filters and orders over the table of runs: what `matches` says, and pages by key. Pure.

1. A filter becomes a mask. Each comparison is one of codes with one or two numbers.
2. An order is by (value, id), runs without a value last. Both are one integer, of which a page
   takes the smallest after its cursor: nothing is sorted but the page.
3. A cursor is the value and the id of a page's last run. Either may be gone since.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import and_, or_
from typing import Any

import numpy as np

from memagent.filters.expression import (
    Condition,
    Conjunction,
    Disjunction,
    Expression,
    Negation,
    RunColumn,
    matches,
)
from memagent_server.store.coded_column import (
    MISSING,
    CodedColumn,
    Key,
    RowMask,
    Rows,
    is_key,
    value_of,
)
from memagent_server.store.reading import bad_cursor, decode_cursor, encode_key
from memagent_server.store.run_table import TableView

_CursorParts = (int | None, Any, str)


def columns_of(expression: Expression) -> Iterator[RunColumn]:
    """Yield the columns that a filter compares."""
    match expression:
        case Conjunction(terms) | Disjunction(terms):
            for term in terms:
                yield from columns_of(term)
        case Negation(term):
            yield from columns_of(term)
        case Condition(column):
            yield column


def filter_mask(view: TableView, expression: Expression) -> RowMask:
    """Return the runs that match a filter."""
    match expression:
        case Conjunction(terms):
            return reduce(and_, (filter_mask(view, term) for term in terms))
        case Disjunction(terms):
            return reduce(or_, (filter_mask(view, term) for term in terms))
        case Negation(term):
            return ~filter_mask(view, term)
        case Condition(column, operator, value):
            mask = view.columns[column].mask(operator, value)
            for run_id, others in view.others.get(column, {}).items():
                row = view.row_of(run_id)
                if row is not None and not mask[row] and value is not None:
                    values = [value_of(key) for key in others]
                    mask[row] = matches(expression, lambda _, values=values: values)  # type: ignore[misc]
            return mask


def page_rows(
    view: TableView,
    mask: RowMask,
    column: RunColumn,
    *,
    is_falling: bool,
    cursor: str | None,
    limit: int,
) -> list[int]:
    """Return the first `limit` rows of a mask after a cursor, in the order of a column.

    Raises WireError for a cursor of another list.
    """
    order = _Order(view, view.columns[column], is_falling=is_falling)
    # a sort of 100,000 takes 9 ms, to find the smallest 51 of them 3 ms
    rows = np.flatnonzero(mask)
    keys = order.keys(rows)
    if cursor is not None:
        keys = keys[keys > order.key_of_cursor(cursor)]
    if len(keys) > limit:
        keys = np.partition(keys, limit)[:limit]
    return [order.row(key) for key in np.sort(keys).tolist()]


def cursor_after(view: TableView, column: RunColumn, row: int) -> str:
    """Return the cursor of a page that ends with a row."""
    coded = view.columns[column]
    code = coded.codes[row]
    key: Sequence[Any] = (None, None) if code == MISSING else coded.keys[code]
    return encode_key([*key, view.ids[row]])


class _Order:
    """Runs as integers that rise in the order of a column."""

    def __init__(self, view: TableView, column: CodedColumn, *, is_falling: bool) -> None:
        self._ids = view.ids
        self._column = column
        self._is_falling = is_falling
        self._last = len(column.keys)
        """The place of a missing value."""

    def keys(self, rows: Rows) -> Rows:
        codes = self._column.codes[rows].astype(np.int64)
        places = self._last - 1 - codes if self._is_falling else codes
        places = np.where(codes == MISSING, self._last, places)
        keys: Rows = places * (len(self._ids) + 1) + self._end(rows)
        return keys

    def row(self, key: int) -> int:
        place = key % (len(self._ids) + 1)
        return len(self._ids) - 1 - place if self._is_falling else place

    def key_of_cursor(self, cursor: str) -> float:
        """Return the integer after which the next page begins."""
        kind, value, run_id = decode_cursor(cursor, _CursorParts)  # type: ignore[arg-type]
        value = tuple(value) if isinstance(value, list) else value
        if kind is not None and not is_key(kind, value):
            raise bad_cursor(cursor)
        width, place = len(self._ids) + 1, float(self._last)
        if kind is not None:
            place = self._place((kind, value))
        if not place.is_integer():
            return place * width
        row = bisect_left(self._ids, run_id)
        is_there = row < len(self._ids) and self._ids[row] == run_id
        # between two runs if this one is gone
        within = float(self._end(row if is_there else row - 0.5))
        return place * width + within

    def _place(self, key: Key) -> float:
        code: float = bisect_left(self._column.keys, key)
        if code == self._last or self._column.keys[int(code)] != key:
            code -= 0.5
        return float(self._last - 1 - code if self._is_falling else code)

    def _end(self, rows: Any) -> Any:
        return len(self._ids) - 1 - rows if self._is_falling else rows
