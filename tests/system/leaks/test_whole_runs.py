"""Whole runs by `memagent run`, as a user makes them: scripts of examiners who knew neither the
finder nor the other folders, from public threads that each names: three sets, the second of which
has much memory that Python doesn't see.

The last report's first suspect is judged. A script takes 5 to 70 s.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.system.leaks.test_leaks import HERE, marks

pytestmark = pytest.mark.long
KNOWN_MISSES = {
    "sqlite_metrics": "nobody is named: SQLite's memory",
    "replay_compose_worker": "nobody is named: it grows in a worker",
    "reward_buffer": "at times a list of five is named instead of the dict that keeps it",
    "figure_report": "nobody is named: matplotlib's memory",
    "profiled_training": "nobody is named: the profiler's memory",
    "ddp_comm_hook": "nobody is named: c10d's objects hide their tensors",
    "adapter_search": "the line is right, but the holder is a method's cell",
    "cached_batches": "the cached functions are named in place of their calls",
    "tracked_metrics": "the line that fills the copies is named, and not the one that makes them",
    "deferred_uploads": "the line that makes the scheduler is named",
}
"""Why a script's line or holder isn't named, by its file's stem. Not strict: some are at times."""


def scripts(folder: str) -> list[Any]:
    return [
        pytest.param(path, id=path.stem, marks=misses(path))
        for path in sorted((HERE / folder).glob("*.py"))
    ]


def misses(path: Path) -> list[pytest.MarkDecorator]:
    reason = KNOWN_MISSES.get(path.stem)
    return [] if reason is None else [pytest.mark.xfail(reason=reason, strict=False)]


def suspects_of(path: Path, folder: Path) -> list[dict[str, Any]]:
    report = folder / "report.json"
    environ = {"MEMAGENT_DIR": str(folder), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "memagent", "run", "--report", str(report), str(path)]
    subprocess.run(command, cwd=path.parent, env=environ, check=True, capture_output=True)
    suspects: list[dict[str, Any]] = json.loads(report.read_text())["suspects"]
    return suspects


@pytest.mark.parametrize("path", scripts("whole_runs"))
def test_it_names_the_holder_and_the_line(path: Path, tmp_path: Path) -> None:
    first = next(iter(suspects_of(path, tmp_path)), None)
    assert first is not None, "no suspect"
    mark = marks(path).get((first["file"], first["line"]))
    assert mark is not None, first
    assert any(name in first["holder"] for name in mark.partition(" ")[2].split("|")), first


@pytest.mark.parametrize("path", scripts("whole_runs_clean"))
def test_a_clean_script_has_no_suspects(path: Path, tmp_path: Path) -> None:
    assert suspects_of(path, tmp_path) == []
