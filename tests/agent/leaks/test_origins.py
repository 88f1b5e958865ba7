"""The attribute that the items of a container keep tensors in: one that is set late."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from memagent.leaks import syntax
from memagent.leaks.origins import attribute_below
from memagent.leaks.referrers import HolderPath

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
