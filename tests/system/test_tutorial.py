"""The tutorial as a reader follows it: the warning, the line, the fix, the budget."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.snippets import ROOT, blocks

PAGE = ROOT / "docs/tutorial-from-warning-to-fix.md"
LEAK = "outputs.append(output)"


@pytest.fixture
def shell(tmp_path):
    """shell(command): run it in the tutorial's folder, with the programs of this environment."""
    environ = {name: value for name, value in os.environ.items() if "MEMAGENT" not in name}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ["MEMAGENT_DIR"] = str(tmp_path / "runs")
    search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environ["PYTHONPATH"] = search

    def shell(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-ec", command],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=240,
        )

    return shell


def apply_diff(text: str, diff: str) -> str:
    """Return the text with each removed line replaced by the added line below it."""
    lines = diff.splitlines()
    for removed, added in zip(lines[::2], lines[1::2], strict=True):
        assert removed[0] == "-" and added[0] == "+" and text.count(removed[1:]) == 1
        text = text.replace(removed[1:], added[1:])
    return text


def test_it_leads_from_the_warning_to_the_fix(shell, tmp_path):
    leaking, search = (block.text for block in blocks(PAGE, "python"))
    leaking_run, fixed_run = (block.text for block in blocks(PAGE, "sh"))
    (diff,) = (block.text for block in blocks(PAGE, "diff"))
    script = tmp_path / "train.py"
    script.write_text(leaking)
    (tmp_path / "search.py").write_text(search)
    line = 1 + next(number for number, text in enumerate(leaking.splitlines()) if LEAK in text)

    first = shell(leaking_run)
    assert first.returncode == 0, first.stderr
    assert "WARNING" in first.stderr and "cause: leak" in first.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["forecast"]["cause"] == "leak"
    assert {suspect["line"] for suspect in report["suspects"]} <= {line}, (
        "none if the run ended first"
    )

    output = shell("python search.py").stdout
    assert f"train.py:{line} outputs: list of" in output
    assert shell(fixed_run).returncode == 1, "the leaking version exceeds the budget"

    script.write_text(apply_diff(leaking, diff))
    fixed = shell(fixed_run)
    assert (fixed.returncode, "WARNING" in fixed.stderr) == (0, False), fixed.stderr
    assert json.loads((tmp_path / "fixed.json").read_text())["suspects"] == []
    assert f"train.py:{line}" in PAGE.read_text()
