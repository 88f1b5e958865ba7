"""Fingerprints of scripts: what changes them, and what doesn't."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memagent.record.fingerprint import Launch, fingerprint

SCRIPT = """
import os, sys
import model as m
from package.data import loader
from helpers import (first, second)
batch = int(os.environ.get("BATCH", "4"))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "package").mkdir(parents=True)
    (folder / "helpers").mkdir()
    files = {
        "train.py": SCRIPT,
        "model.py": "from layers import Block",
        "layers.py": "width = 8",
        "unrelated.py": "x = 1",
        "config.yaml": "lr: 1",
        "package/__init__.py": "",
        "package/data.py": "from . import loader",
        "package/loader.py": "workers = 2",
        "helpers/__init__.py": "",
        "helpers/first.py": "y = 1",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def of(folder: Path, *arguments: str, **environ: str) -> str | None:
    return fingerprint(Launch(folder / "train.py", folder, arguments), environ)


@pytest.mark.parametrize(
    "name", ["train.py", "model.py", "layers.py", "package/loader.py", "helpers/first.py"]
)
def test_code_that_the_script_imports_counts(folder: Path, name: str) -> None:
    before = of(folder)
    with (folder / name).open("a") as file:
        file.write("\n# changed")
    assert of(folder) != before


def test_other_files_and_another_folder_do_not_count(folder: Path, tmp_path: Path) -> None:
    before = of(folder)
    (folder / "unrelated.py").write_text("x = 2")
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert before is not None
    assert of(tmp_path / "elsewhere") == of(folder) == before


def test_arguments_and_the_configs_that_they_name_count(folder: Path) -> None:
    config = folder / "config.yaml"
    before = of(folder, str(config))
    assert of(folder, str(config), "--lr=2") != before
    config.write_text("lr: 2")
    assert of(folder, str(config)) != before


def test_variables_that_the_code_reads_count(folder: Path) -> None:
    before = of(folder)
    assert of(folder, OTHER="1", MEMAGENT_SERVER="http://x", LOCAL_RANK="0") == before
    assert of(folder, BATCH="8") != before
    assert of(folder, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True") != before


def test_a_script_that_cannot_be_read_has_none(tmp_path: Path) -> None:
    assert fingerprint(Launch(tmp_path / "gone.py", tmp_path, [])) is None


@pytest.mark.parametrize("command", [["train.py"], ["-m", "train"], ["-m", "package.main"]])
def test_a_process_has_the_fingerprint_of_its_target(folder: Path, command: list[str]) -> None:
    say = "from memagent.record import fingerprint as f; print(f.fingerprint_of_process())"
    (folder / "train.py").write_text(say)
    (folder / "package" / "main.py").write_text(f"from package import data\n{say}")
    ended = subprocess.run(
        [sys.executable, *command, "7"], cwd=folder, capture_output=True, text=True, check=True
    )
    find = (
        "import sys; from memagent.record.fingerprint import *;"
        f"print(fingerprint(Launch.of_target({command[-1]!r}, ['7'], is_module={len(command) > 1})))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", find], cwd=folder, capture_output=True, text=True, check=True
    )
    assert ended.stdout == asked.stdout != "None\n"
