"""Filters on runs as SQL: what `memagent.filters.expression.matches` says, over rows.

1. Each comparison is true or false, never null, so that `not` means the same as in Python.
2. A CASE checks the type of a value in JSON before it is cast: a database may evaluate both sides
   of an AND.
3. PostgreSQL compares a JSON number as a decimal, for a double would fail on 1e400 and round; texts
   in both databases by code points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import ne
from typing import Any

from msgspec.json import encode as to_json
from sqlalchemy import (
    JSON,
    Integer,
    Numeric,
    String,
    Text,
    and_,
    case,
    cast,
    collate,
    exists,
    false,
    func,
    literal,
    not_,
    or_,
    select,
    true,
)
from sqlalchemy.sql.elements import ColumnElement

from memagent.filters.columns import RUN_COLUMNS
from memagent.filters.expression import (
    COMPARE,
    Condition,
    Conjunction,
    Disjunction,
    Expression,
    Negation,
    Operand,
    Operator,
)
from memagent.wire.fields import SCALARS_STREAM
from memagent_server.store.models import RunRow, RunTagRow, StreamRow

SqlCondition = ColumnElement[bool]
_FULLNESS = func.coalesce(1.0 * StreamRow.peak_bytes / func.nullif(StreamRow.limit_bytes, 0), 0.0)
PEAK_OF_RUN: ColumnElement[Any] = (
    select(StreamRow.peak_bytes)
    .where(StreamRow.run_id == RunRow.id, StreamRow.is_current, StreamRow.peak_bytes.is_not(None))
    .order_by(_FULLNESS.desc(), StreamRow.peak_bytes.desc())
    .limit(1)
    .correlate(RunRow)
    .scalar_subquery()
)
"""The peak on the device of a run that is nearest to its limit."""
_SQL_COMPARE: dict[Operator, Callable[[Any, Any], Any]] = {**COMPARE, "!=": ne}
_CODE_POINTS = {"sqlite": "BINARY", "postgresql": "C"}


def condition_of(expression: Expression, dialect: str) -> SqlCondition:
    """Return the condition on `RunRow` in the SQL of `sqlite` or `postgresql`."""
    match expression:
        case Conjunction(terms):
            return and_(*(condition_of(term, dialect) for term in terms))
        case Disjunction(terms):
            return or_(*(condition_of(term, dialect) for term in terms))
        case Negation(term):
            return not_(condition_of(term, dialect))
        case Condition(column, operator, value):
            if column.source == "run":
                return _run_condition(column.path[0], operator, value, dialect)
            if column.source == "config":
                leaf = Leaf.at(RunRow.config, column.path, dialect)
                return leaf.condition(operator, value)
            return _scalar_condition(column.path, operator, value, dialect)


def _run_condition(name: str, operator: Operator, value: Operand, dialect: str) -> SqlCondition:
    if name == "tags":
        # a list by tag joins the same table
        tags = exists().where(RunTagRow.run_id == RunRow.id).correlate(RunRow)
        if value is None:
            return not_(tags) if operator == "=" else tags
        return tags.where(RunTagRow.tag == value)
    column: ColumnElement[Any] = PEAK_OF_RUN if name == "peak_bytes" else getattr(RunRow, name)
    if value is None:
        return column.is_(None) if operator == "=" else column.is_not(None)
    if RUN_COLUMNS[name] == "text" and operator not in ("=", "!="):
        column = collate(column, _CODE_POINTS[dialect])
    is_count = isinstance(column.type, Integer)
    compared = _decimal(value) if is_count and dialect == "postgresql" else value
    return func.coalesce(_compare(column, operator, compared), false())


def _scalar_condition(
    path: Sequence[str], operator: Operator, value: Operand, dialect: str
) -> SqlCondition:
    """Compare the newest values that the ranks of the newest launch have logged."""
    leaf = Leaf.at(StreamRow.latest, path, dialect)
    of_newest = (StreamRow.is_current, StreamRow.kind == SCALARS_STREAM)
    streams = exists().where(StreamRow.run_id == RunRow.id, *of_newest).correlate(RunRow)
    if value is None and operator == "=":
        return not_(streams.where(leaf.condition("!=", None)))
    return streams.where(leaf.condition(operator, value))


@dataclass(frozen=True)
class Leaf:
    """A value in a JSON column: the SQL of its type's name, its text and its number."""

    kind: ColumnElement[Any]
    text: ColumnElement[Any]
    number: ColumnElement[Any]
    dialect: str

    @classmethod
    def at(cls, column: Any, path: Sequence[str], dialect: str) -> Leaf:
        if dialect == "sqlite":
            # keys are compared as JSON spells them
            place = "$" + "".join(f".{to_json(name).decode()}" for name in path)
            value = func.json_extract(column, place)
            return cls(func.json_type(column, place), value, value, dialect)
        # `->` with a text takes keys of objects only; a path would index arrays, too
        keys = [cast(literal(name, String), Text) for name in path]
        parent: Any = reduce(
            lambda json, key: json.op("->", return_type=JSON())(key), keys[:-1], column
        )
        text = parent.op("->>", return_type=Text())(keys[-1])
        kind = func.json_typeof(parent.op("->", return_type=JSON())(keys[-1]))
        return cls(kind, text, cast(text, Numeric), dialect)

    def condition(self, operator: Operator, value: Operand) -> SqlCondition:
        is_present = func.coalesce(self.kind != "null", false())
        if value is None:
            return not_(is_present) if operator == "=" else is_present
        kinds, compared = self._compared(operator, value)
        other = true() if operator == "!=" else false()
        return case((not_(is_present), false()), (self.kind.in_(kinds), compared), else_=other)

    def _compared(self, operator: Operator, value: Operand) -> tuple[Sequence[str], SqlCondition]:
        """Return the JSON types that can be compared with a constant, and the comparison."""
        is_sqlite = self.dialect == "sqlite"
        if isinstance(value, bool):
            kinds = ("true", "false") if is_sqlite else ("boolean",)
            spelled = str(value).lower()
            return kinds, _compare(self.kind if is_sqlite else self.text, operator, spelled)
        if isinstance(value, str):
            text = collate(self.text, _CODE_POINTS[self.dialect])
            return ("text",) if is_sqlite else ("string",), _compare(text, operator, value)
        number: Any = value if is_sqlite else _decimal(value)
        kinds = ("integer", "real") if is_sqlite else ("number",)
        return kinds, _compare(self.number, operator, number)


def _decimal(value: Operand) -> ColumnElement[Any]:
    """Return a number as PostgreSQL's decimal, which has no bounds and doesn't round."""
    return cast(literal(repr(value), String), Numeric)


def _compare(left: ColumnElement[Any], operator: Operator, right: Any) -> SqlCondition:
    compare: Callable[[Any, Any], SqlCondition] = _SQL_COMPARE[operator]
    return compare(left, right)
