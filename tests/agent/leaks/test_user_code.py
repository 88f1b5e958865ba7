"""The user's modules, as a search sees them at each of its slices."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from memagent.leaks.user_code import UserScopes, namespace, script_modules


@pytest.fixture
def add(monkeypatch):
    """Add a module of this name and file."""

    def _add(name, file):
        module = ModuleType(name)
        module.__file__ = file
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return _add


def spaces():
    return {name: (file, id(space)) for name, file, space in script_modules()}


def test_a_module_is_known_as_soon_as_it_is_loaded_and_no_longer_than_that(add):
    before = spaces()
    module = add("a_new_module", "/home/ana/a_new_module.py")
    assert spaces()["a_new_module"] == (module.__file__, id(namespace(module)))
    assert UserScopes().modules[id(namespace(module))] == ("a_new_module", module.__file__)
    del sys.modules["a_new_module"]
    assert spaces() == before


def test_a_module_that_replaces_another_of_its_name_is_read_anew(add):
    add("a_new_module", "/home/ana/one.py")
    assert spaces()["a_new_module"][0] == "/home/ana/one.py"
    add("a_new_module", "/home/ana/two.py")
    assert spaces()["a_new_module"][0] == "/home/ana/two.py"


def test_the_main_script_counts_also_where_it_is_installed(add, monkeypatch):
    module = add("an_installed_script", pytest.__file__)
    assert "an_installed_script" not in spaces()
    # workers of a test run have no main script
    monkeypatch.setattr(sys.modules["__main__"], "__file__", pytest.__file__, raising=False)
    assert spaces()["an_installed_script"] == (pytest.__file__, id(namespace(module)))


def test_no_library_is_a_module_of_the_user():
    files = [file for name, file, _ in script_modules() if name != "__main__"]
    assert __file__ in files and not any("site-packages/torch" in file for file in files)
