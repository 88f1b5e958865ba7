"""Calls of a library: known by what they mean, by name only where that's unknown."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from memagent.leaks import syntax
from memagent.leaks.library_calls import filling_call, lengthening_calls, library_calls
from memagent.leaks.object_names import ObjectName
from memagent.leaks.referrers import HolderPath
from memagent.leaks.source_lines import PASSES

LIBRARY = """
class Store:
    def __init__(self, size):
        self.items = {}

    def get(self, key, value):
        self.items[key] = value

    def record(self, value):
        self.items[len(self.items)] = value

    def touch(self, value):
        self.newest = value

    def __iter__(self):
        yield self.record(0)
        yield from self.items


class Cache:
    def __init__(self):
        self.keys = []

    def update(self, keys):
        self.keys = self.keys + keys


class RecentCache(Cache):
    def update(self, keys):
        longer = self.keys + keys
        self.keys = longer[-4:]
"""
SCRIPT = """
from functools import wraps

from memagent_test_library import Cache, RecentCache, Store

size = 3
store = Store(size)
shown = wraps(print)(lambda *values: None)
other = {}


def step(number, unknown):
    other.get(number, unknown)
    unknown.get(number, number)
    unknown.record(number)
    store.touch(number)
    store.get(number, unknown)
    shown(number, unknown)


class Owner:
    def __init__(self, first):
        self.store = store
        self.store.get("first", first)

    def add(self, value):
        self.store.get("newest", value)


owner = Owner(size)
cache, recent = Cache(), RecentCache()


def reply(model, prompt):
    return model(prompt, past=cache)


def set_up(size):
    fresh = Store(size)
    fresh.touch(size)
    fresh.record(size)
    return fresh

"""

STREAM = """
from memagent_test_library import Store


def records(source):
    for record in source:
        yield record


def fill(source, values):
    for value in values:
        source.record(value)


stream = Store(3)
entries = records(stream)
next(entries)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Import a script that uses an installed library."""
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "memagent_test_library.py").write_text(LIBRARY)
    (tmp_path / "memagent_test_script.py").write_text(SCRIPT)
    (tmp_path / "memagent_test_stream.py").write_text(STREAM)
    for folder in (tmp_path, site):
        monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("memagent_test_script")
    for name in ("memagent_test_script", "memagent_test_stream", "memagent_test_library"):
        sys.modules.pop(name, None)
    syntax.clear_cache()


def test_a_call_is_known_by_what_it_means(script: ModuleType) -> None:
    """A dict's `get` isn't the library's, nor is a built-in; an unknown one may be anybody's.

    The method that uses the attribute is the likeliest to fill it, and what makes the store the
    least likely.
    """
    file = str(script.__file__)
    name = ObjectName("store.items", (".items", "store"), file, "<module>")
    holder = HolderPath(script.store.items, 1.0, name, (), (script.store,))
    lines = [line.text for line in library_calls(name, holder, [file])]
    assert lines[:2] == ["store.get(number, unknown)", "store.touch(number)"]
    assert set(lines[2:5]) == {"unknown.record(number)", "fresh.touch(size)", "fresh.record(size)"}
    assert set(lines[5:]) == {"store = Store(size)", "fresh = Store(size)"}


def test_a_call_in_the_constructor_comes_after_one_that_runs_often(script: ModuleType) -> None:
    owner, file = script.owner, str(script.__file__)
    name = ObjectName("Owner.store.items", (".items", ".store"), file, "Owner", owner=type(owner))
    holder = HolderPath(owner.store.items, 1.0, name, (), (owner.store, owner))
    lines = [line.text for line in library_calls(name, holder, [file])]
    own = [line for line in lines if line.startswith("self.")]
    assert own == ['self.store.get("newest", value)', 'self.store.get("first", first)']


def test_6_a_method_that_adds_to_the_attribute_is_found(script: ModuleType) -> None:
    """Also in a function that has returned, whose variables are gone."""
    file, store = str(script.__file__), script.store
    name = ObjectName("fresh.items", (".items", "fresh"), file, "set_up")
    holder = HolderPath(store.items, 1.0, name, (), (store,))
    line = filling_call(name, holder, [file])
    assert line is not None and line.text == "fresh.record(size)" and line.strength == PASSES
    newest = ObjectName("fresh.newest", (".newest", "fresh"), file, "set_up")
    assert filling_call(newest, holder, [file]) is None
    own = HolderPath(script.owner, 1.0, name, (), (script.owner,))
    assert filling_call(name, own, [file]) is None


def test_6_an_unknown_receiver_gives_way_to_a_known_one(script: ModuleType) -> None:
    """Without the owner's name it may be any class that has such a method."""
    file, store = str(script.__file__), script.store
    name = ObjectName("held.items", (".items", "held"), file, "step")
    holder = HolderPath(store.items, 1.0, name, (), (store,))
    line = filling_call(name, holder, [file])
    assert line is not None and line.text == "store.get(number, unknown)"
    script.store = None
    assert filling_call(name, holder, [file]) is None


def test_what_gets_an_object_that_lengthens_its_attribute_is_found(script: ModuleType) -> None:
    """Not so if the library's class cuts off the oldest items."""

    def texts(variable: str) -> list[str]:
        owner, file = getattr(script, variable), str(script.__file__)
        name = ObjectName(f"{variable}.keys", (".keys", variable), file, "<module>")
        holder = HolderPath(owner.keys, 1.0, name, (), (owner,))
        return [line.text for line in lengthening_calls(name, holder, [file])]

    assert texts("cache") == ["return model(prompt, past=cache)"]
    assert texts("recent") == []


def test_a_loop_over_the_owner_comes_first(script: ModuleType) -> None:
    """A suspended generator runs it. Without that, nothing tells what the loop goes over."""
    stream = importlib.import_module("memagent_test_stream")

    def first() -> str:
        file, owner = str(stream.__file__), stream.stream
        name = ObjectName("stream.items", (".items", "stream"), file, "<module>")
        holder = HolderPath(owner.items, 1.0, name, (), (owner,))
        return next(library_calls(name, holder, [file])).text

    assert first() == "for record in source:"
    stream.entries.close()
    assert first() == "source.record(value)"
