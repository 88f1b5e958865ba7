"""Real scripts that leak, each in a process of its own: the finder must name the holder and the very line; and keep silent where
nothing leaks. A script marks its line with `# LEAK kind holder`.

`cases` has one of each kind, `told` what people told of in public threads, `variants` the same written otherwise, `clean` what leaks
nothing. All scripts of a folder are forked from one process, which spares each the import of torch: one worker of pytest-xdist takes them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def scripts(folder: str, *marks: pytest.MarkDecorator) -> list[Any]:
    together = pytest.mark.xdist_group(f"leaks-{folder}")
    return [
        pytest.param(path, id=f"{folder}-{path.stem}", marks=[together, *marks])
        for path in sorted((HERE / folder).glob("*.py"))
    ]


@pytest.fixture(scope="module")
def suspects_of() -> Callable[[Path], list[dict[str, Any]]]:
    """What the finder said of a script; all of its folder are run at once, once."""

    @cache
    def run(folder: Path) -> dict[str, Any]:
        command = [sys.executable, str(HERE / "watched.py"), *map(str, sorted(folder.glob("*.py")))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280)
        answers = [
            json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"script"')
        ]
        assert not [answer for answer in answers if "error" in answer], done.stderr
        return {answer["script"]: answer["suspects"] for answer in answers}

    return lambda path: run(path.parent)[str(path)]


@pytest.mark.parametrize(
    "path",
    [
        *scripts("cases"),
        *scripts("reported", pytest.mark.long),
        *scripts("variants", pytest.mark.long),
    ],
)
def test_it_names_the_holder_and_the_line(
    path: Path, suspects_of: Callable[[Path], list[dict[str, Any]]]
) -> None:
    number, text = next(
        (n, t) for n, t in enumerate(path.read_text().splitlines(), 1) if "# LEAK " in t
    )
    kind, _, holder = text.partition("# LEAK ")[2].partition(" ")
    suspects = suspects_of(path)
    assert suspects, "no suspect"
    first = suspects[0]
    assert (first["file"], first["line"], first["kind"]) == (str(path), number, kind), first
    assert holder in first["holder"] and first["fix"] and first["bytes_per_step"] > 0


@pytest.mark.parametrize("path", scripts("clean"))
def test_it_suspects_nobody_where_nothing_leaks(
    path: Path, suspects_of: Callable[[Path], list[dict[str, Any]]]
) -> None:
    assert suspects_of(path) == []
