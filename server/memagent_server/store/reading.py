"""Shared parts of queries: pages and their cursors, joins with many keys, and rows as schemas.

1. A cursor is the key of a page's last row, so page 2,000 costs as much as page 1. Most lists are
   by falling id, and their cursors are ids. Others have a key of several columns: base64 of a JSON
   list.
2. Many keys travel as one JSON parameter: the statement's text stays the same for any number of
   keys, and no database limit on parameters applies.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, TypeVar

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
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.base import ExecutableOption

from memagent.errors import WireError
from memagent_server.schemas.base import Schema
from memagent_server.store.models import Base

Model = TypeVar("Model", bound=Base)
SchemaType = TypeVar("SchemaType", bound=Schema)

_YEAR_9999_END_S = 253_402_300_799.0
"""The last second that ISO 8601 can express: a broken clock must not break a page."""


@lru_cache(maxsize=8192)  # the same lists are requested again and again, and are mostly timestamps
def iso(at: float | None) -> str | None:
    """Convert UTC seconds since the Unix epoch to `2026-01-01T00:00:00.000Z`; None stays None."""
    if at is None:
        return None
    time = datetime.fromtimestamp(min(max(at, 0.0), _YEAR_9999_END_S), timezone.utc)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_schema(kind: type[SchemaType], row: Base, **others: Any) -> SchemaType:
    """Build a schema from `others` and from the row's columns of the same names."""
    values = {name: getattr(row, name) for name in kind.__struct_fields__ if name not in others}
    for name in values.keys() & _timestamps(kind):
        values[name] = iso(values[name])
    return kind(**values, **others)


@lru_cache(maxsize=64)
def _timestamps(kind: type[Schema]) -> frozenset[str]:
    """Return the fields that models hold as seconds: all named `at`, `*_at` or `*_until`."""
    return frozenset(
        name for name in kind.__struct_fields__ if name == "at" or name.endswith(("_at", "_until"))
    )


def newest_page(
    session: Session,
    model: type[Model],
    *conditions: ColumnElement[bool],
    limit: int,
    cursor: str | None = None,
    options: Sequence[ExecutableOption] = (),
) -> tuple[list[Model], str | None]:
    """Return a page of rows by falling id, and the next cursor. Raises WireError."""
    key: Any = getattr(model, "id")  # noqa: B009 - every paged model has one
    before = id_before(cursor)
    query = select(model).where(*conditions, *([] if before is None else [key < before]))
    rows = list(session.scalars(query.order_by(key.desc()).limit(limit + 1).options(*options)))
    last: Any = rows[limit - 1] if len(rows) > limit else None
    return rows[:limit], None if last is None else str(last.id)


def id_before(cursor: str | None) -> int | None:
    """Return the id in a cursor. Raises WireError if no page returned that cursor."""
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit()) or len(cursor) > 18:
        raise bad_cursor(cursor)
    return int(cursor)


def encode_cursor(row: Any, columns: Sequence[InstrumentedAttribute[Any]]) -> str:
    """Return the cursor of a row in a list that is ordered by several columns."""
    return encode_key([getattr(row, column.key) for column in columns])


def encode_key(values: Sequence[Any]) -> str:
    """Return the cursor of the values that order a list."""
    return base64.urlsafe_b64encode(msgspec.json.encode(list(values))).decode().rstrip("=")


def decode_cursor(cursor: str, kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """Decode a cursor of `encode_cursor`. Raises WireError for one of another list or order."""
    try:
        encoded = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        row_type: Any = tuple.__class_getitem__(kinds)
        values: tuple[Any, ...] = msgspec.json.decode(encoded, type=row_type)
    except (ValueError, msgspec.MsgspecError) as error:
        raise bad_cursor(cursor) from error
    return values


def bad_cursor(cursor: str) -> WireError:
    """Return the error of a cursor that no page returned."""
    return WireError(
        f"cursor: {cursor!r} is not the next_cursor of any page; leave it out for the first page",
        field="cursor",
    )


def integer_keys(session: Session, values: Iterable[int | tuple[int, int]]) -> Subquery:
    """Return a relation of integers, or of pairs of them, in columns `first` and `second`."""
    pairs = [value if isinstance(value, tuple) else (value, 0) for value in values]
    return _relation(session, pairs, is_text=False)


def text_keys(session: Session, values: Iterable[tuple[str, int]]) -> Subquery:
    """Return a relation of pairs whose column `first` is text."""
    return _relation(session, list(values), is_text=True)


def _relation(session: Session, values: list[Any], *, is_text: bool) -> Subquery:
    text = literal(msgspec.json.encode(values).decode())
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    rows = func.json_each(text) if is_sqlite else func.json_array_elements(cast(text, JSON))
    row = rows.table_valued("value")
    item = _sqlite_item if is_sqlite else _postgresql_item
    first = item(row, 0, is_text=is_text)
    return select(first.label("first"), item(row, 1, is_text=False).label("second")).subquery()


def _sqlite_item(row: TableValuedAlias, index: int, *, is_text: bool) -> ColumnElement[Any]:
    return func.json_extract(row.c.value, f"$[{index}]", type_=Text() if is_text else BigInteger())


def _postgresql_item(row: TableValuedAlias, index: int, *, is_text: bool) -> ColumnElement[Any]:
    item = row.c.value.op("->>")(index)
    return item if is_text else cast(item, BigInteger)
