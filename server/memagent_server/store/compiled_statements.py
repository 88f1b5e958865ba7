"""Statements that SQLAlchemy compiles once and that are then run as the driver's own: a third of what `Connection.execute` costs.

For those that run with each batch, and only for those. Types are SQLAlchemy's both ways, and so are the errors. On SQLite they go to the
driver past SQLAlchemy; elsewhere the way there and back is what costs.
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
    """An insert or update whose values are all parameters by name."""

    def __init__(self, statement: Insert | Update) -> None:
        self._statement = statement
        self._compiled: dict[str, _Compiled] = {}

    def run(self, connection: Connection, *rows: Mapping[str, Any]) -> None:
        """Once for each row of parameters."""
        if not rows:
            return
        compiled = self._compiled.get(connection.dialect.name)
        if compiled is None:
            compiled = self._compiled[connection.dialect.name] = _compile(
                self._statement, connection.dialect
            )
        if connection.dialect.name == "sqlite":
            with _cursor(connection, compiled) as cursor:
                for row in rows:
                    cursor.execute(compiled.text, compiled.parameters(row))
            return
        parameters = [compiled.parameters(row) for row in rows]
        connection.exec_driver_sql(compiled.text, parameters if len(rows) > 1 else parameters[0])


class CompiledSelect:
    """A select whose parameters have names."""

    def __init__(self, statement: Select[Any]) -> None:
        self._statement = statement
        self._compiled: tuple[_Compiled, list[tuple[int, _Processor]]] | None = None

    def rows(self, connection: Connection, parameters: Mapping[str, Any]) -> list[list[Any]]:
        """All rows, as lists in the order of the columns."""
        dialect = connection.dialect
        if dialect.name != "sqlite":
            return [list(row) for row in connection.execute(self._statement, parameters)]
        if self._compiled is None:
            self._compiled = (
                _compile(self._statement, dialect),
                _of_columns(self._statement, dialect),
            )
        compiled, processors = self._compiled
        with _cursor(connection, compiled) as cursor:
            cursor.execute(compiled.text, compiled.parameters(parameters))
            found = [list(row) for row in cursor.fetchall()]
        for row in found:
            for index, processor in processors:
                row[index] = processor(row[index])
        return found


def compile_insert(model: type[Base], *columns: str) -> CompiledWrite:
    """An insert into these columns."""
    return CompiledWrite(insert(model).values({name: bindparam(name) for name in columns}))


@dataclass(frozen=True)
class _Compiled:
    text: str
    names: Sequence[str]
    """Of the parameters, in order where the driver takes them by position."""
    is_positional: bool
    processors: Mapping[str, _Processor]
    constants: Mapping[str, Any]
    """Parameters that SQLAlchemy made of values in the statement."""

    def parameters(self, row: Mapping[str, Any]) -> Any:
        processors = self.processors
        if self.constants:
            row = {**self.constants, **row}
        values = [
            processors[name](row[name]) if name in processors else row[name] for name in self.names
        ]
        return tuple(values) if self.is_positional else dict(zip(self.names, values, strict=True))


@contextmanager
def _cursor(connection: Connection, compiled: _Compiled) -> Iterator[Any]:
    """One of the driver's own. Its errors become SQLAlchemy's, without the parameters: people's words do not belong into a log."""
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
    found = {
        name: compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect)
        for name in names
    }
    processors = {name: processor for name, processor in found.items() if processor is not None}
    constants = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
    return _Compiled(str(compiled), names, compiled.positional, processors, constants)


def _of_columns(statement: Select[Any], dialect: Dialect) -> list[tuple[int, _Processor]]:
    found = [
        column.type.dialect_impl(dialect).result_processor(dialect, None)
        for column in statement.selected_columns
    ]
    return [(index, processor) for index, processor in enumerate(found) if processor is not None]
