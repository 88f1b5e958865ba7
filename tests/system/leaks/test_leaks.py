"""Real scripts that leak, each in a process of its own: the finder must name the holder and the very line; and keep silent where
nothing leaks. A script marks its line with `# LEAK kind holder`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CASES = sorted((HERE / "cases").glob("*.py"))
CLEAN = sorted((HERE / "clean").glob("*.py"))


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    """What the finder said of each script."""
    scripts = [str(path) for path in (*CASES, *CLEAN)]
    done = subprocess.run(
        [sys.executable, str(HERE / "watched.py"), *scripts], capture_output=True, text=True, timeout=280
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"script"')]
    found = {Path(line["script"]).stem: line for line in lines}
    assert not [line for line in lines if "error" in line], done.stderr
    return found


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_it_names_the_holder_and_the_line(path: Path, answers: dict[str, dict[str, Any]]) -> None:
    number, text = next((n, t) for n, t in enumerate(path.read_text().splitlines(), 1) if "# LEAK " in t)
    kind, _, holder = text.partition("# LEAK ")[2].partition(" ")
    suspects = answers[path.stem]["suspects"]
    assert suspects, "no suspect"
    first = suspects[0]
    assert (first["file"], first["line"], first["kind"]) == (str(path), number, kind), first
    assert holder in first["holder"] and first["fix"]
    assert first["bytes_per_step"] > 0 or kind in ("gradient", "graph", "hidden_state")


@pytest.mark.parametrize("path", CLEAN, ids=lambda path: path.stem)
def test_it_suspects_nobody_where_nothing_leaks(path: Path, answers: dict[str, dict[str, Any]]) -> None:
    assert answers[path.stem]["suspects"] == []
