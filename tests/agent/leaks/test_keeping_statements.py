"""Statements that keep what a line makes, as its source shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from memagent.leaks import syntax
from memagent.leaks.host_suspects import UNHELD_CONFIDENCE, most_specific
from memagent.leaks.suspect import build_suspect

KEPT = {
    "self.rows": (
        "class A:\n    def add(self, x):\n        values = parse(x)  #?\n"
        "        self.rows.append(values)  #!\n"
    ),
    "self.text": "class A:\n    def add(self, x):\n        self.text += f'{x}'  #?!\n",
    "self.table": (
        "class A:\n    def add(self, x):\n        self.table = np.append(self.table, x)  #?!\n"
    ),
    "rows": "def add(rows, x):\n    rows.append(parse(x))  #?!\n",
    "log": "log = ''\ndef add(x):\n    global log\n    log += str(x)  #?!\n",
}
NOT_KEPT = {
    "a variable of the function": (
        "def add(x):\n    rows = []\n    values = parse(x)  #?\n    rows.append(values)\n"
    ),
    "a sum of the function": "def add(x):\n    text = ''\n    text += str(x)  #?\n",
    "a function of numpy": "def add(rows, x):\n    np.append(rows, x)  #?\n",
    "a part": "def add(x):\n    values = parse(x)  #?\n    RECENT.append(values[0])\n",
    "nothing": "def add(x):\n    values = parse(x)  #?\n    return sum(values)\n",
}


def suspect_of(source: str, folder: Path):
    file = folder / "train.py"
    file.write_text(source)
    number = next(place for place, text in enumerate(source.splitlines(), 1) if "#?" in text)
    line = build_suspect(str(file), number, None, "code", "host", 5_000, UNHELD_CONFIDENCE)
    syntax.clear_cache()
    (suspect,) = most_specific([], [line], {})
    return suspect, line


@pytest.mark.parametrize("holder", KEPT)
def test_a_line_without_a_holder_is_named_with_what_it_makes_longer(holder, tmp_path):
    source = KEPT[holder]
    suspect, line = suspect_of(source, tmp_path)
    marked = next(place for place, text in enumerate(source.splitlines(), 1) if "!" in text)
    assert (suspect.line, suspect.holder) == (marked, f"{holder}: Python objects")
    assert (suspect.bytes_per_step, suspect.confidence) == (5_000, line.confidence)


@pytest.mark.parametrize("case", NOT_KEPT)
def test_what_ends_with_a_call_keeps_nothing(case, tmp_path):
    suspect, line = suspect_of(NOT_KEPT[case], tmp_path)
    assert suspect == line
