"""Which values match a filter: types, missing values, several values."""

from __future__ import annotations

import pytest

from memagent.filters.expression import columns_of, config_values, matches
from memagent.filters.parser import parse

CONFIG = {
    "lr": 1e-3,
    "name": "adam",
    "amp": True,
    "empty": None,
    "one": 1,
    "list": [1],
    "deep": {"a.b": {"c": 3}},
}


def test_columns_are_listed_once_in_the_order_of_the_filter():
    text = "not (config.lr < 1 or user = 'a') and config.lr > 0 and scalar.x > 1"
    names = columns_of(parse(text))
    assert [(item.source, *item.path) for item in names] == [
        ("config", "lr"),
        ("run", "user"),
        ("scalar", "x"),
    ]


def lookup(column):
    if column.source == "config":
        return config_values(CONFIG, column.path)
    return {"loss": [0.5, 2.0], "tags": ["a", "b"], "step": [7], "error": [None]}[column.path[0]]


@pytest.mark.parametrize(
    ("where", "is_match"),
    [
        ("config.lr = 0.001", True),
        ("config.lr < 1e-3", False),
        ("config.lr <= 1e-3 and step > 6", True),
        ("config.missing = 1 or step = 7", True),
        ('config.deep."a.b".c = 3', True),
        ("config.deep.c = 3", False),
        ("config.list = 1", False),
        ("config.list.0 = 1", False),
        ("config.list != 1", True),
        ("config.amp = true", True),
        ("config.amp = 1", False),
        ("config.one = true", False),
        ("config.amp != false", True),
        ("config.name > 3", False),
        ("config.name != 3", True),
        ('config.name >= "Z"', True),
        ("config.missing != 1", False),
        ("not (config.missing = 1)", True),
        ("config.missing = null", True),
        ("config.empty = null", True),
        ("config.empty != null", False),
        ("config.lr != null", True),
        ("error = null", True),
        ("scalar.loss < 1", True),
        ("scalar.loss > 1", True),
        ("not (scalar.loss < 1)", False),
        ('"a" in tags and "c" not in tags', True),
        ("tags != null", True),
    ],
)
def test_it_matches(where, is_match):
    assert matches(parse(where), lookup) is is_match
