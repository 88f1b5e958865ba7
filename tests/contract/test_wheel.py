"""The wheel contains the files that are read at run time."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHIPPED = ("dashboards", "docs", "migrations")


def test_the_wheel_holds_all_files_that_are_read(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [
        path
        for folder in SHIPPED
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".md", ".json", ".yml", ".py")
    ]
    missing = [
        name
        for path in files
        if (name := f"memagent_server/_resources/{path.relative_to(ROOT).as_posix()}") not in names
    ]
    assert missing == []
    assert {"memagent/__init__.py", "memagent_server/web/templates/manual.html"} <= names
    device = (ROOT / "agent/memagent/rehearsal/device").iterdir()
    assert {f"memagent/rehearsal/device/{path.name}" for path in device} <= names
    assert "memagent/rehearsal/stubs.txt" in names
