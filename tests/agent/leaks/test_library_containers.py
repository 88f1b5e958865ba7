"""Containers of libraries at which a walk begins, since the script's code names them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from memagent.leaks import syntax
from memagent.leaks.library_containers import library_containers
from memagent.leaks.object_names import file_of
from memagent.leaks.origins import line_of_holder
from memagent.leaks.reachability import nearest_names
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.user_code import UserScopes

MODULE = "memagent_test_names"


@pytest.fixture
def script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], ModuleType]]:
    def load(source: str) -> ModuleType:
        (tmp_path / f"{MODULE}.py").write_text(source)
        return importlib.import_module(MODULE)

    monkeypatch.syspath_prepend(str(tmp_path))
    yield load
    sys.modules.pop(MODULE, None)
    syntax.clear_cache()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import mimetypes\ndef f():\n    return mimetypes.suffix_map\n", "mimetypes.suffix_map"),
        ("import mimetypes\nclass A:\n    def f(self):\n        return mimetypes.suffix_map\n",
         "mimetypes.suffix_map"),
        ("def f():\n    def g():\n        import mimetypes\n        mimetypes.suffix_map.clear()\n",
         "mimetypes.suffix_map"),
        ("import email.charset\ndef f():\n    return email.charset.CHARSETS\n",
         "email.charset.CHARSETS"),
    ],
    ids=["global", "method", "import of a function", "package"],
)  # fmt: skip
def test_it_finds_a_container_that_code_names(
    source: str, expected: str, script: Callable[[str], ModuleType]
) -> None:
    before = {name.expression for name, _ in library_containers(UserScopes())}
    script(source)
    after = {name.expression for name, _ in library_containers(UserScopes())}
    assert (expected in before, expected in after) == (False, True)


def test_it_leaves_out_what_the_code_does_not_name(script: Callable[[str], ModuleType]) -> None:
    script("import mimetypes\nsuffix_map = {}\ndef f():\n    return mimetypes.guess_type\n")
    names = {name.expression for name, _ in library_containers(UserScopes())}
    assert "mimetypes.suffix_map" not in names


def test_what_such_a_container_keeps_has_its_name_and_line(
    script: Callable[[str], ModuleType],
) -> None:
    source = "import mimetypes\ndef keep(key, rows):\n    mimetypes.suffix_map[key] = rows\n"
    module, table = script(source), vars(sys.modules["mimetypes"])["suffix_map"]
    module.keep("memagent", [1.5])
    ids = {id(table["memagent"])}
    del table
    try:
        (holder,) = nearest_names(UserScopes(), ids, TimeBudget()).values()
        assert holder.name is not None
        assert holder.name.expression == "mimetypes.suffix_map['memagent']"
        line = line_of_holder(UserScopes(), holder, "host")
        assert line is not None and (line.file, line.line) == (module.__file__, 3)
    finally:
        del vars(sys.modules["mimetypes"])["suffix_map"]["memagent"]


OWN_TABLE = """
import mimetypes
class Tokens:
    suffix_map = {}
    def keep(self, key):
        mimetypes.guess_type(key)
        self.suffix_map[key] = 1
"""


@pytest.mark.parametrize(
    ("source", "is_named"),
    [
        (OWN_TABLE, False),
        ("import mimetypes as types_\ndef f(key):\n    types_.suffix_map[key] = 1\n", True),
        (
            "def f(key):\n    import mimetypes as m\n    def g():\n        m.suffix_map[key] = 1\n",
            True,
        ),
        ("def f(key):\n    import email.charset as c\n    c.CHARSETS[key] = 1\n", True),
        ("def f(key):\n    import email.charset\n    email.charset.CHARSETS[key] = 1\n", True),
        ("from email import charset\ndef f(key):\n    charset.CHARSETS[key] = 1\n", True),
    ],
    ids=[
        "attribute of that name",
        "alias",
        "import around a closure",
        "import of a part, as",
        "import within",
        "import of a part",
    ],
)
def test_an_attribute_counts_only_if_it_is_taken_of_the_module(
    source: str, is_named: bool, script: Callable[[str], ModuleType]
) -> None:
    script(source)
    names = {name.expression for name, _ in library_containers(UserScopes())}
    assert bool(names & {"mimetypes.suffix_map", "email.charset.CHARSETS"}) == is_named


def test_tables_of_the_interpreter_are_left_out(script: Callable[[str], ModuleType]) -> None:
    script("import sys\ndef f(model):\n    return sys.modules, sys.path\n")
    names = {name.expression for name, _ in library_containers(UserScopes())}
    assert not [name for name in names if name.startswith("sys.")]


ANSWERING = """
from collections import defaultdict
class Config(dict):
    __getattr__ = dict.__getitem__
class Counts(defaultdict):
    __getattr__ = defaultdict.__getitem__
class Table:
    config, counts = Config(lr=1), Counts(int, a=23)
config, counts = Table.config, Table.counts
"""


def test_no_object_of_the_script_is_asked_for_an_attribute(
    script: Callable[[str], ModuleType],
) -> None:
    module = script(ANSWERING)
    list(library_containers(UserScopes()))
    assert file_of(module.Table) in ("", module.__file__)
    assert (module.config, dict(module.counts)) == ({"lr": 1}, {"a": 23})


def test_what_is_found_for_a_search_is_read_once(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    script("import mimetypes\ndef f():\n    return mimetypes.suffix_map\n")
    scopes = UserScopes()
    first = [name.expression for name, _ in library_containers(scopes)]
    monkeypatch.setattr("memagent.leaks.library_containers.dis", None)
    assert [name.expression for name, _ in library_containers(scopes)] == first != []
