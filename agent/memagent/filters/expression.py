"""Parsed filters, and whether a run's values match one. Pure; the store has the same in SQL.

1. A column has values: none if it's missing, several for tags and for a scalar of several ranks. A
   comparison is true if one of them satisfies it.
2. Values of different types are unequal, and neither is less. A missing value satisfies `= null`
   only, so `not (a = 1)` also matches runs without `a`, and `a != 1` does not.
3. Numbers are compared exactly, texts by code points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt
from typing import Any, Literal

Source = Literal["run", "config", "scalar"]
Operator = Literal["=", "!=", "<", "<=", ">", ">="]
Operand = str | int | float | bool | None
Lookup = Callable[["RunColumn"], Sequence[Any]]

COMPARE: dict[Operator, Callable[[Any, Any], bool]] = {
    "=": eq,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}


@dataclass(frozen=True)
class RunColumn:
    """A column of the run, a key of its config (a path of names), or a logged scalar."""

    source: Source
    path: tuple[str, ...]


@dataclass(frozen=True)
class Condition:
    """A column against a constant. None stands for a missing value, with `=` and `!=` only."""

    column: RunColumn
    operator: Operator
    value: Operand


@dataclass(frozen=True)
class Negation:
    term: Expression


@dataclass(frozen=True)
class Conjunction:
    """Terms that must all be true."""

    terms: tuple[Expression, ...]


@dataclass(frozen=True)
class Disjunction:
    """Terms of which one must be true."""

    terms: tuple[Expression, ...]


Expression = Condition | Negation | Conjunction | Disjunction


def columns_of(expression: Expression) -> list[RunColumn]:
    """Return the columns that a filter compares, in its order."""
    if isinstance(expression, Condition):
        return [expression.column]
    terms = (expression.term,) if isinstance(expression, Negation) else expression.terms
    return list(dict.fromkeys(column for term in terms for column in columns_of(term)))


def matches(expression: Expression, lookup: Lookup) -> bool:
    """Return True if a run matches; `lookup` returns the values of a column."""
    match expression:
        case Conjunction(terms):
            return all(matches(term, lookup) for term in terms)
        case Disjunction(terms):
            return any(matches(term, lookup) for term in terms)
        case Negation(term):
            return not matches(term, lookup)
        case Condition(column, operator, operand):
            values = [value for value in lookup(column) if value is not None]
            if operand is None:
                return bool(values) == (operator == "!=")
            return any(_satisfies(value, operator, operand) for value in values)


def config_values(config: Any, path: Sequence[str]) -> list[Any]:
    """Return the value at a path of keys; empty if there is none."""
    for name in path:
        if not isinstance(config, dict) or name not in config:
            return []
        config = config[name]
    return [config]


def _satisfies(value: Any, operator: Operator, operand: Operand) -> bool:
    is_comparable = _type_of(value) == _type_of(operand)
    if operator == "!=":
        return not (is_comparable and value == operand)
    return is_comparable and COMPARE[operator](value, operand)


def _type_of(value: Any) -> str:
    """Return the type in the language's terms: a boolean is not a number."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "other"
