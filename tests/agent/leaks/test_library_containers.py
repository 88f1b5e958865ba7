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
