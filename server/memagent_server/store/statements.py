"""Statements that SQLAlchemy compiles once, and inserts that skip or overwrite an existing key.

1. Running a compiled statement takes a third of `Connection.execute`. They are for the statements
   of each batch and request only. Types and errors are SQLAlchemy's. On SQLite they go to the
   driver directly; elsewhere the round trip dominates the cost.
2. Inserts that skip or overwrite are atomic on both databases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    CursorResult,
    Dialect,
    Insert,
    Select,
    Table,
    Update,
    bindparam,
    insert,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from memagent_server.store.models import Base

_Processor = Callable[[Any], Any]


class CompiledWrite:
    """An insert or update whose values are all named parameters."""

    def __init__(self, statement: Insert | Update) -> None:
        self._statement = statement
        self._by_dialect: dict[str, _Compiled] = {}

    def run(self, connection: Connection, *rows: Mapping[str, Any]) -> None:
        """Run the statement for each row of parameters."""
        if not rows:
            return
        dialect = connection.dialect
        compiled = self._by_dialect.get(dialect.name)
        if compiled is None:
            compiled = self._by_dialect[dialect.name] = _compile(self._statement, dialect)
        if dialect.name == "sqlite":
            for row in rows:
                compiled.run_on_driver(connection, row)
            return
        parameters = [compiled.parameters(row) for row in rows]
        connection.exec_driver_sql(compiled.text, parameters if len(rows) > 1 else parameters[0])


class CompiledSelect:
    """A select with named parameters."""

    def __init__(self, statement: Select[Any]) -> None:
        self._statement = statement
        self._compiled: tuple[_Compiled, list[tuple[int, _Processor]]] | None = None

    def rows(self, connection: Connection, parameters: Mapping[str, Any]) -> list[list[Any]]:
        """Return all rows as lists in the order of the columns."""
        dialect = connection.dialect
        if dialect.name != "sqlite":
            return [list(row) for row in connection.execute(self._statement, parameters)]
        if self._compiled is None:
            processors = _result_processors(self._statement, dialect)
            self._compiled = _compile(self._statement, dialect), processors
        compiled, processors = self._compiled
        rows = compiled.run_on_driver(connection, parameters)
        for row in rows:
            for index, processor in processors:
                row[index] = processor(row[index])
        return rows


def compile_insert(model: type[Base], *columns: str) -> CompiledWrite:
    """Return an insert into these columns."""
    return CompiledWrite(insert(model).values({name: bindparam(name) for name in columns}))


@dataclass(frozen=True)
class _Compiled:
    """A compiled statement. `names` are its parameters, in order if the driver takes positions."""

    text: str
    names: Sequence[str]
    is_positional: bool
    processors: Sequence[tuple[int, _Processor]]
    constants: Mapping[str, Any]
    """Parameters that SQLAlchemy made of literal values."""

    def parameters(self, row: Mapping[str, Any]) -> Any:
        """Convert a row of values to the driver's parameters."""
        if self.constants:
            row = {**self.constants, **row}
        values = [row[name] for name in self.names]
        for index, processor in self.processors:
            values[index] = processor(values[index])
        return values if self.is_positional else dict(zip(self.names, values, strict=True))

    def run_on_driver(self, connection: Connection, row: Mapping[str, Any]) -> list[list[Any]]:
        """Run the statement on the driver's connection and return all rows.

        The driver's errors become SQLAlchemy's, without the parameters: users' data doesn't belong
        in a log.
        """
        driver: Any = connection.connection.dbapi_connection
        try:
            return [*map(list, driver.execute(self.text, self.parameters(row)))]
        except connection.dialect.loaded_dbapi.Error as error:
            driver_error = connection.dialect.loaded_dbapi.Error
            raise DBAPIError.instance(
                self.text,
                None,
                error,
                driver_error,
                hide_parameters=True,
                dialect=connection.dialect,
            ) from error


def _compile(statement: Insert | Update | Select[Any], dialect: Dialect) -> _Compiled:
    compiled: Any = statement.compile(dialect=dialect)
    # positiontup repeats a name that the statement uses twice
    names = list(compiled.positiontup if compiled.positional else compiled.binds)
    processors = [
        compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect) for name in names
    ]
    needed = [(index, processor) for index, processor in enumerate(processors) if processor]
    constants = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
    return _Compiled(str(compiled), names, compiled.positional, needed, constants)


def _result_processors(statement: Select[Any], dialect: Dialect) -> list[tuple[int, _Processor]]:
    processors = [
        column.type.dialect_impl(dialect).result_processor(dialect, None)
        for column in statement.selected_columns
    ]
    return [(index, processor) for index, processor in enumerate(processors) if processor]


def insert_if_missing(session: Session, model: type[Base], values: dict[str, Any]) -> bool:
    """Insert a row with the model's defaults; return False if its key exists."""
    statement = (
        _insert(session, model)
        .values(values)
        .on_conflict_do_nothing()
        # without it, SQLAlchemy may drop the count of an insert
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
        session.execute(_upsert_of(session.get_bind().dialect.name, model, update), rows)


@cache
def _upsert_of(
    dialect: str, model: type[Base], update: tuple[str, ...]
) -> sqlite.Insert | postgresql.Insert:
    """Return a statement, made once: that takes as long as its execution."""
    insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
    statement = insert(_table(model))
    keys = [column.name for column in _table(model).primary_key]
    changes = {name: statement.excluded[name] for name in update}
    return statement.on_conflict_do_update(index_elements=keys, set_=changes)


def raise_to(
    connection: Connection, model: type[Base], key: dict[str, Any], column: str, value: int
) -> None:
    """Insert a row; if its primary key exists with less in `column`, raise that to `value`."""
    statement = _insert(connection, model).values({**key, column: value})
    more = statement.excluded[column]
    # in the statement, so that two writers cannot lower it in between
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
