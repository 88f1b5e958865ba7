"""Pages of lists: a cursor is the key of a page's last row, so that page 2,000 costs what page 1 does.

Most lists are by falling id, and their cursors are ids. Others have a key of several columns, written as base64 of a JSON list.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.base import ExecutableOption

from memagent.errors import WireError
from memagent_server.store.models import Base

Row = TypeVar("Row", bound=Base)


def newest(
    session: Session,
    model: type[Row],
    *which: ColumnElement[bool],
    limit: int,
    cursor: str | None = None,
    options: Sequence[ExecutableOption] = (),
) -> tuple[list[Row], str | None]:
    """A page of the rows of which `which` holds, by falling id, and the cursor of the next one. Raises WireError for a bad cursor."""
    key: Any = getattr(model, "id")  # noqa: B009 - all that are paged have one
    before = position(cursor)
    query = select(model).where(*which, *([] if before is None else [key < before]))
    found = list(session.scalars(query.order_by(key.desc()).limit(limit + 1).options(*options)))
    page = found[:limit]
    last: Any = page[-1] if page else None
    return page, str(last.id) if len(found) > limit else None


def position(cursor: str | None) -> int | None:
    """The id that a cursor names. Raises WireError for one that no page gave."""
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit()) or len(cursor) > 18:
        raise bad_cursor(cursor)
    return int(cursor)


def write_key(row: Any, columns: Sequence[InstrumentedAttribute[Any]]) -> str:
    """The cursor that names a row by several columns."""
    values = [getattr(row, column.key) for column in columns]
    return base64.urlsafe_b64encode(msgspec.json.encode(values)).decode().rstrip("=")


def read_key(cursor: str, kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """The values that `write_key` wrote. Raises WireError for a cursor that no page gave, or one of a list in another order."""
    try:
        plain = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        found: tuple[Any, ...] = msgspec.json.decode(plain, type=tuple[kinds])  # type: ignore[valid-type]
    except (ValueError, msgspec.MsgspecError) as error:
        raise bad_cursor(cursor) from error
    return found


def bad_cursor(cursor: str) -> WireError:
    """What is said of a cursor that no page gave."""
    what = f"cursor: {cursor!r} is no page's next_cursor; leave it out to begin with the first page"
    return WireError(what, field="cursor")
