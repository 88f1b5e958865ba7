"""Many keys to join with, as one parameter: the statement stays the same however many there are, and no limit on parameters is met."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Subquery,
    TableValuedAlias,
    Text,
    cast,
    func,
    literal,
    select,
)
from sqlalchemy.orm import Session


def numbers(session: Session, values: Iterable[int | tuple[int, int]]) -> Subquery:
    """A relation of whole numbers, or of pairs of them, in columns `first` and `second`."""
    return _relation(
        session, [one if isinstance(one, tuple) else (one, 0) for one in values], is_text=False
    )


def texts(session: Session, values: Iterable[tuple[str, int]]) -> Subquery:
    """The same with texts in the column `first`."""
    return _relation(session, list(values), is_text=True)


def _relation(session: Session, values: list[Any], *, is_text: bool) -> Subquery:
    text = literal(msgspec.json.encode(values).decode())
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    rows = func.json_each(text) if is_sqlite else func.json_array_elements(cast(text, JSON))
    row = rows.table_valued("value")
    item = _of_sqlite if is_sqlite else _of_postgresql
    first = item(row, 0, is_text=is_text)
    return select(first.label("first"), item(row, 1, is_text=False).label("second")).subquery()


def _of_sqlite(row: TableValuedAlias, place: int, *, is_text: bool) -> ColumnElement[Any]:
    return func.json_extract(row.c.value, f"$[{place}]", type_=Text() if is_text else BigInteger())


def _of_postgresql(row: TableValuedAlias, place: int, *, is_text: bool) -> ColumnElement[Any]:
    found = row.c.value.op("->>")(place)
    return found if is_text else cast(found, BigInteger)
