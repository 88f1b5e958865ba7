"""The quick start works as its page says, here and from a wheel in an empty environment."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.snippets import ROOT
from tests.system.quickstart import play

RUNS = [("completed", 200)] * 2
FOLDERS = (Path("/usr/bin"), Path("/usr/local/bin"), *Path.home().glob(".pyenv/versions/*/bin"))
MIN_MINOR = 10


def test_every_command_of_the_page_works(tmp_path):
    assert play(Path(sys.executable).parent, tmp_path) == RUNS


def oldest_and_newest():
    """Return the oldest and the newest Python of this machine that memagent supports."""
    pythons = {sys.version_info.minor: Path(sys.executable)}
    for path in (path for folder in FOLDERS for path in folder.glob("python3.*")):
        match = re.fullmatch(r"python3\.(\d+)", path.name)
        if match and int(match[1]) >= MIN_MINOR and can_make_environments(path):
            pythons.setdefault(int(match[1]), path)
    return [pythons[minor] for minor in sorted({min(pythons), max(pythons)})]


def can_make_environments(python):
    return (
        subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True).returncode
        == 0
    )


@pytest.mark.install
@pytest.mark.timeout(1800)
def test_the_page_works_from_a_wheel_on_the_oldest_and_newest_python(tmp_path, capfd):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(build, cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    (torch,) = re.findall(r"^TORCH := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for python in oldest_and_newest():
        began_at = time.monotonic()
        folder = tmp_path / python.name
        subprocess.run([python, "-m", "venv", folder], check=True)
        pip = [folder / "bin/python", "-m", "pip", "install", "-q", "--no-cache-dir"]
        subprocess.run([*pip, torch, f"{wheel}[server]"], check=True)
        assert play(folder / "bin", folder) == RUNS
        with capfd.disabled():
            print(f"{python}: {time.monotonic() - began_at:.0f} s")
