"""Statements that SQLAlchemy compiles once: running them takes a third of `Connection.execute`.

They are for the statements of each batch and request only. Types and errors are SQLAlchemy's. On
SQLite they go to the driver directly; elsewhere the round trip dominates the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Dialect, Insert, Select, Update, bindparam, insert
from sqlalchemy.exc import DBAPIError

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
            with _driver_cursor(connection, compiled) as cursor:
                for row in rows:
                    cursor.execute(compiled.text, compiled.parameters(row))
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
        with _driver_cursor(connection, compiled) as cursor:
            cursor.execute(compiled.text, compiled.parameters(parameters))
            rows = [list(row) for row in cursor.fetchall()]
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
    processors: Mapping[str, _Processor]
    constants: Mapping[str, Any]
    """Parameters that SQLAlchemy made of literal values."""

    def parameters(self, row: Mapping[str, Any]) -> Any:
        """Convert a row of values to the driver's parameters."""
        processors = self.processors
        if self.constants:
            row = {**self.constants, **row}
        values = [
            processors[name](row[name]) if name in processors else row[name] for name in self.names
        ]
        return tuple(values) if self.is_positional else dict(zip(self.names, values, strict=True))


@contextmanager
def _driver_cursor(connection: Connection, compiled: _Compiled) -> Iterator[Any]:
    """Open a cursor of the driver whose errors become SQLAlchemy's.

    The errors lack the parameters: users' data doesn't belong in a log.
    """
    cursor = connection.connection.cursor()
    driver = connection.dialect.loaded_dbapi
    try:
        yield cursor
    except driver.Error as error:
        raise DBAPIError.instance(
            compiled.text,
            None,
            error,
            driver.Error,
            hide_parameters=True,
            dialect=connection.dialect,
        ) from error
    finally:
        cursor.close()


def _compile(statement: Insert | Update | Select[Any], dialect: Dialect) -> _Compiled:
    compiled: Any = statement.compile(dialect=dialect)
    names = list(compiled.positiontup if compiled.positional else compiled.binds)
    processors = {
        name: compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect)
        for name in names
    }
    needed = {name: processor for name, processor in processors.items() if processor is not None}
    constants = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
    return _Compiled(str(compiled), names, compiled.positional, needed, constants)


def _result_processors(statement: Select[Any], dialect: Dialect) -> list[tuple[int, _Processor]]:
    processors = [
        column.type.dialect_impl(dialect).result_processor(dialect, None)
        for column in statement.selected_columns
    ]
    return [(index, processor) for index, processor in enumerate(processors) if processor]
