"""Searches downwards from the script's variables."""

from __future__ import annotations

import colorsys
import types

from memagent.leaks import variable_walk
from memagent.leaks.reachability import holders_of_kept, nearest_names
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.user_code import UserScopes


class Row:
    """What is looked for: each may have an allocation to look up."""


FIXED = [[Row(), Row(), Row()]]
AGAIN = (FIXED[0], "by another way")


def search(growth_of):
    """Return the names of what keeps the rows, and how many objects were looked up for that."""
    looked_up = []

    def find(items):
        looked_up.extend(map(id, items))
        return {id(item) for item in items if type(item) is Row}

    holders = holders_of_kept(UserScopes(), find, lambda _: set(), TimeBudget(), growth_of)
    return [item.name.expression for item in holders], len(looked_up)


def test_objects_are_looked_up_once_however_many_containers_are_passed_by(monkeypatch):
    # beside the objects of all other tests a walk would end at this bound
    monkeypatch.setattr(variable_walk, "MAX_OBJECTS", 10**9)
    grown, once = search(lambda container: container is FIXED[0])
    fixed, several = search(lambda _: 0)
    assert grown and fixed
    assert several < 1.1 * once


def remote_files():
    """Return an object of a library's class, whose instances share what it stores."""
    space = {"__module__": colorsys.__name__, "store": {1: [], 2: []}}
    return type("Files", (), space)()


FILES = types.SimpleNamespace(remote=remote_files())


def test_what_a_class_of_a_library_keeps_is_named_through_an_instance(monkeypatch):
    monkeypatch.setattr(variable_walk, "MAX_OBJECTS", 10**9)
    key = id(FILES.remote.store)
    holders = nearest_names(UserScopes(), [key], TimeBudget())
    assert holders[key].name.expression == "FILES.remote.store"
