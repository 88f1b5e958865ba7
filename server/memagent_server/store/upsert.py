"""Inserts that skip or overwrite an existing key: atomically, on both databases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, CursorResult, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from memagent_server.store.models import Base


def insert_if_missing(session: Session, model: type[Base], values: dict[str, Any]) -> bool:
    """Insert a row with the model's defaults; return False if its key exists."""
    statement = (
        _insert(session, model)
        .values(values)
        .on_conflict_do_nothing()
        .execution_options(preserve_rowcount=True)
    )
    result = session.execute(statement)
    assert isinstance(result, CursorResult)
    return result.rowcount == 1


def upsert(
    session: Session, model: type[Base], values: dict[str, Any], *, update: tuple[str, ...]
) -> None:
    """Insert a row; if its primary key exists, overwrite the columns in `update`."""
    keys = [column.name for column in _table(model).primary_key]
    changes = {name: values[name] for name in update}
    session.execute(
        _insert(session, model)
        .values(values)
        .on_conflict_do_update(index_elements=keys, set_=changes)
    )


def upsert_all(
    session: Session, model: type[Base], rows: Sequence[dict[str, Any]], *, update: tuple[str, ...]
) -> None:
    """Upsert many rows with the same columns in one round trip."""
    if rows:
        statement = _insert(session, model)
        keys = [column.name for column in _table(model).primary_key]
        changes = {name: statement.excluded[name] for name in update}
        session.execute(statement.on_conflict_do_update(index_elements=keys, set_=changes), rows)


def raise_to(
    connection: Connection, model: type[Base], key: dict[str, Any], column: str, value: int
) -> None:
    """Insert a row; if its primary key exists with less in `column`, raise that to `value`."""
    statement = _insert(connection, model).values({**key, column: value})
    more = statement.excluded[column]
    where = more > _table(model).c[column]
    connection.execute(
        statement.on_conflict_do_update(index_elements=list(key), set_={column: more}, where=where)
    )


def _insert(target: Session | Connection, model: type[Base]) -> sqlite.Insert | postgresql.Insert:
    bind = target if isinstance(target, Connection) else target.get_bind()
    is_sqlite = bind.dialect.name == "sqlite"
    return sqlite.insert(_table(model)) if is_sqlite else postgresql.insert(_table(model))


def _table(model: type[Base]) -> Table:
    table = model.__table__
    assert isinstance(table, Table)
    return table
