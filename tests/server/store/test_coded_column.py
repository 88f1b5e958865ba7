"""Columns in memory compare, change and stay exact as the values they were made of."""

from __future__ import annotations

import random

import numpy as np
import pytest

from memagent.filters.expression import Condition, RunColumn, matches
from memagent_server.store.coded_column import (
    MAX_TEXT,
    CodedColumn,
    is_key,
    json_key,
    key_of,
    tags_key,
)

COLUMN = RunColumn("config", ("x",))
VALUES = (None, True, False, 0, 1, 1.0, -1, 2**60, 0.1 + 0.2, 1e400, "", "0", "a", "ä", "😀", [1])
OPERATORS = ("=", "!=", "<", "<=", ">", ">=")


def coded(values):
    column = CodedColumn.empty(len(values))
    return column.changed(np.arange(len(values)), [key_of(value) for value in values])


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("operand", [None, True, 0, 1, -0.5, 2**60, 0.3, "a", "b", "", "ä"])
def test_a_comparison_is_that_of_python(operator, operand):
    if operator not in ("=", "!=") and (operand is None or isinstance(operand, bool)):
        pytest.skip("no filter says that")
    condition = Condition(COLUMN, operator, operand)
    expected = [matches(condition, lambda _, value=value: [value]) for value in VALUES]
    assert coded(VALUES).mask(operator, operand).tolist() == expected


def test_changes_in_any_order_lead_to_the_same_column():
    source = random.Random(0)
    values = [None] * 40
    column = CodedColumn.empty(40)
    for _ in range(200):
        rows = source.sample(range(len(values)), 5)
        for row in rows:
            values[row] = source.choice([*VALUES, source.randrange(1000), source.random()])
        column = column.changed(np.array(rows), [key_of(values[row]) for row in rows])
        assert keys(column) == [key_of(value) for value in values]
        assert list(column.keys) == sorted(column.keys)
        numbers = column.numbers(np.arange(40)).tolist()
        known = [isinstance(value, int | float) and not isinstance(value, bool) for value in values]
        assert [number == number for number in numbers] == known
        assert all(number == values[row] for row, number in enumerate(numbers) if known[row])


def test_values_that_no_run_has_any_more_are_forgotten():
    """A logged scalar is another at each step."""
    column = CodedColumn.empty(10)
    for step in range(5_000):
        column = column.changed(np.array([step % 10]), [key_of(step)])
    assert len(column.keys) < 1_100
    assert sorted(keys(column)) == [key_of(step) for step in range(4_990, 5_000)]


def test_runs_come_and_go():
    column = coded(["b", None, "a"]).inserted(np.array([0, 2]))
    assert keys(column) == [None, key_of("b"), None, None, key_of("a")]
    assert keys(column.removed(np.array([1]))) == [None, None, None, key_of("a")]


def test_long_texts_are_cut_and_compare_alike():
    """No constant of a filter is as long."""
    long = "x" * MAX_TEXT
    column = coded([long + "a", long + "b", "x"])
    assert column.size_bytes() < 5 * MAX_TEXT
    assert column.mask(">", "x" * 900).tolist() == [True, True, False]
    assert column.mask("=", "x").tolist() == [False, False, True]
    assert len(json_key("[" * 5_000)[1]) == MAX_TEXT


def test_tags_are_found_by_one_of_them():
    column = CodedColumn.empty(3)
    rows = [tags_key(["a", "b"]), tags_key([]), tags_key(["b"])]
    column = column.changed(np.arange(3), rows)
    assert column.mask("=", "b").tolist() == [True, False, True]
    assert column.mask("=", "a").tolist() == [True, False, False]
    assert column.mask("=", None).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("kind", "value", "is_valid"),
    [
        (0, True, True),
        (1, True, False),
        (1, 2.5, True),
        (2, "a", True),
        (2, 1, False),
        (3, "[1]", True),
        (4, ("a",), True),
        (4, ("a", 1), False),
        (9, "a", False),
        ("x", "a", False),
        (1, {}, False),
    ],
)
def test_a_key_from_outside_must_compare_with_others(kind, value, is_valid):
    assert is_key(kind, value) == is_valid


def keys(column):
    return [None if code < 0 else column.keys[code] for code in column.codes]
