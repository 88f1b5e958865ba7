"""Readable names of objects, as seen from what refers to them."""

from __future__ import annotations

import functools

from memagent.leaks.object_names import name_from
from memagent.leaks.user_code import UserScopes


def collect(rows, x, *, also):
    rows.append(x)
    also.append(x)


record = functools.partial(collect, [], also=[])


def test_an_argument_of_a_partial_has_the_name_of_its_parameter():
    paths = [record.args[0], record.args], [record.keywords["also"], record.keywords]
    names = [name_from(UserScopes(), record, path) for path in paths]
    assert [name and name.expression for name in names] == ["rows", "also"]
    assert names[0] is not None and names[0].code is collect.__code__
