"""Scripts that leak: the finder must name the holder and the line, and stay silent on clean ones.

A script marks its line with `# LEAK kind holder`; `any` stands for a kind that may be one of
several. Where several lines can rightly be blamed each has a mark, and a mark can have several
holders: `a|b`. Modules of a script are in a folder beside it, `<stem>_lib`. `cases` has one of each
kind and some patterns, `reported` comes from public threads, `variants` has the same leaks written
differently, `clean` has none. `patterns` and `patterns_clean` were written before the finder was changed for them, and so were `threads` and `threads_clean`, by
other authors and from other public threads. `held_out` and `held_out_clean` come from an examiner
who knew neither the finder nor these folders; each takes its number of steps as an argument.
`native` and `native_clean` were written before the finder read the heap by line.

All scripts of a folder are forked from one process, which saves each the import of torch, so one
worker of pytest-xdist runs them.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.python_fork import ForkServer

HERE = Path(__file__).parent
KNOWN_MISSES = {
    "tee_loader": "both iterators lead to the batches, and the other one is named",
    "zlib_sessions": "Python traces its streams, and nothing shows their size: only a run tells growth",
    "message_queue": "the growth of its compressor is not seen, for a reason that is not known yet",
    "growing_strip": "another line of the function allocates as much, and what it makes is freed",
    "born_again_teacher": "it grows at every sixteenth step, and only within the module's own copy",
}
"""Why a script's line or holder isn't named yet, by its file's stem."""


def scripts(folder: str, *marks: pytest.MarkDecorator) -> list[Any]:
    together = pytest.mark.xdist_group(f"leaks-{folder}")
    return [
        pytest.param(path, id=f"{folder}-{path.stem}", marks=[together, *marks, *misses(path)])
        for path in sorted((HERE / folder).glob("*.py"))
    ]


def marks(path: Path) -> dict[tuple[str, int], str]:
    """Return the kind and the holders of each marked statement, by file and first line."""
    return {
        (str(file), _first_lines(file).get(number, number)): text.partition("# LEAK ")[2]
        for file in (path, *path.with_name(f"{path.stem}_lib").glob("*.py"))
        for number, text in enumerate(file.read_text().splitlines(), 1)
        if "# LEAK " in text
    }


@cache
def _first_lines(file: Path) -> dict[int, int]:
    """Return the first line of each line's simple statement: a mark may be at its end."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return {
        number: node.lineno
        for node in nodes
        if isinstance(node, ast.stmt) and not hasattr(node, "body")
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def misses(path: Path) -> list[pytest.MarkDecorator]:
    reason = KNOWN_MISSES.get(path.stem)
    return [] if reason is None else [pytest.mark.xfail(reason=reason, strict=True)]


@pytest.fixture(scope="module")
def suspects_of(fork_server: ForkServer) -> Callable[[Path], list[dict[str, Any]]]:
    """Return the suspects of a script; all scripts of its folder run once, together."""

    @cache
    def run(folder: Path) -> dict[str, Any]:
        paths = map(str, sorted(folder.glob("*.py")))
        done = fork_server.run(str(HERE / "monitored_run.py"), *paths, timeout=600)
        results = [
            json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"script"')
        ]
        assert results and not [result for result in results if "error" in result], done.stderr
        return {result["script"]: result["suspects"] for result in results}

    return lambda path: run(path.parent)[str(path)]


@pytest.mark.parametrize(
    "path",
    [
        *scripts("cases"),
        *scripts("reported", pytest.mark.long),
        *scripts("variants", pytest.mark.long),
        *scripts("patterns", pytest.mark.long),
        *scripts("threads", pytest.mark.long),
        *scripts("held_out", pytest.mark.long),
        *scripts("native", pytest.mark.long),
    ],
)
def test_it_names_the_holder_and_the_line(
    path: Path, suspects_of: Callable[[Path], list[dict[str, Any]]]
) -> None:
    suspects = suspects_of(path)
    assert suspects, "no suspect"
    first = suspects[0]
    mark = marks(path).get((first["file"], first["line"]))
    assert mark is not None, first
    kind, _, holders = mark.partition(" ")
    assert kind in ("any", first["kind"]), first
    assert any(holder in first["holder"] for holder in holders.split("|")), first
    assert first["fix"] and first["bytes_per_step"] > 0


@pytest.mark.parametrize(
    "path",
    [
        *scripts("clean"),
        *scripts("patterns_clean", pytest.mark.long),
        *scripts("threads_clean", pytest.mark.long),
        *scripts("held_out_clean", pytest.mark.long),
        *scripts("native_clean", pytest.mark.long),
    ],
)
def test_a_clean_script_has_no_suspects(
    path: Path, suspects_of: Callable[[Path], list[dict[str, Any]]]
) -> None:
    assert suspects_of(path) == []
