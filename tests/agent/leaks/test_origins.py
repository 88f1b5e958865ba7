"""Lines of a holder: late attributes of its items, and the link of a chain."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from memagent.leaks import syntax
from memagent.leaks.object_names import ObjectName
from memagent.leaks.origins import attribute_below, line_of_holder
from memagent.leaks.pattern_fixes import with_chain_fix
from memagent.leaks.referrers import HolderPath
from memagent.leaks.suspect import build_suspect, describe_container
from memagent.leaks.user_code import UserScopes

SCRIPT = """
class Layer:
    def __init__(self, values):
        self.values = {value}

    def load(self, state):
        self.values = state
"""


@pytest.mark.parametrize(("value", "is_late"), [("None", True), ("values", False)])
def test_an_attribute_that_the_constructor_gets_is_not_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, is_late: bool
) -> None:
    """Then each item is a new one, and their number grows."""
    (tmp_path / "memagent_test_items.py").write_text(SCRIPT.format(value=value))
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        layer = importlib.import_module("memagent_test_items").Layer([1])
        layer.values = [2]
        holder = HolderPath([layer], 1.0, None, (layer, layer.values), ())
        assert (attribute_below(holder) is not None) == is_late
    finally:
        sys.modules.pop("memagent_test_items", None)
        syntax.clear_cache()


CHAINS = {
    "a parent that is set": (
        "class Node:\n    parent = None\n    def __init__(self, parent):\n"
        "        self.parent = parent  #!\ntop = None\ndef step():\n    global top\n"
        "    node = Node(top)\n    top = node\n"
    ),
    "a parent that is set outside": (
        "class Node:\n    pass\ntop = Node()\ndef step():\n    global top\n    node = Node()\n"
        "    node.parent = top  #!\n    top = node\n"
    ),
    "a parent of a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass Node:\n    parent: object = None\n"
        "top = None\ndef step():\n    global top\n    node = Node(top)  #!\n    top = node\n"
    ),
    "one that its variable is the parent of": (
        "class Node:\n    def __init__(self, parent):\n        self.parent = parent\ntop = None\n"
        "def step():\n    global top\n    top = Node(top)  #!\n"
    ),
}


@pytest.mark.parametrize("case", CHAINS)
def test_the_line_of_a_chain_is_the_one_that_links_it(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = CHAINS[case]
    (tmp_path / "memagent_test_chain.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    marked = next(number for number, text in enumerate(source.splitlines(), 1) if "#!" in text)
    try:
        module = importlib.import_module("memagent_test_chain")
        for _ in range(6):
            module.step()
        below = [module.top.parent]
        for _ in range(3):
            below.append(below[-1].parent)
        name = ObjectName("top", ("top",), str(module.__file__), "<module>")
        holder = HolderPath(module.top, 1.0, name, tuple(below), ())
        line = line_of_holder(UserScopes(), holder, "object")
        assert line is not None and line.line == marked, line
        assert describe_container(module.top, "object", below) == "chain of Node by parent"
        suspect = build_suspect(str(module.__file__), marked, None, "top", "object", 1, 0.8)
        assert with_chain_fix(suspect, holder).fix.startswith("Set `parent` of an older `Node`")
        alone = HolderPath(module.top, 1.0, name, (), ())
        assert with_chain_fix(suspect, alone) == suspect
    finally:
        sys.modules.pop("memagent_test_chain", None)
        syntax.clear_cache()
