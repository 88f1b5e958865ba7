"""The copy of a script's folder, and what the device does when a link is opened for writing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from memagent.rehearsal import build, sandbox
from memagent.rehearsal.sandbox import MAX_COPY_BYTES, Sandbox

LARGE = b"k" * (MAX_COPY_BYTES + 1)


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """A folder with a script, a log, a large file in a folder below, and a hidden folder."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "train.py").write_text("pass")
    (folder / "log.txt").write_text("kept")
    (folder / "data" / "large.bin").write_bytes(LARGE)
    return folder


@pytest.fixture
def copy(original: Path):
    made = Sandbox.of(original)
    yield made
    made.remove()
    assert not made.scratch.exists()


def test_small_files_are_copied_and_large_ones_linked(original: Path, copy: Sandbox) -> None:
    assert not (copy.folder / "log.txt").is_symlink()
    assert (copy.folder / "data" / "large.bin").resolve() == original / "data" / "large.bin"
    assert (copy.folder / ".git").is_symlink()
    assert copy.changes() == []


def test_paths_lead_into_the_copy_and_back(original: Path, copy: Sandbox) -> None:
    inside = copy.inside(f"{original}/train.py")
    assert inside == str(copy.folder / "train.py")
    assert copy.outside(f"at {inside}:3") == f"at {original}/train.py:3"
    assert copy.inside(f"{original}-2/train.py") == f"{original}-2/train.py"


def test_beyond_many_entries_folders_are_shared(original: Path, monkeypatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_ENTRIES", 1)
    made = Sandbox.of(original)
    assert made.shared == ["data"]
    assert (made.folder / "data").is_symlink()
    made.remove()
    assert (original / "data" / "large.bin").read_bytes() == LARGE


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.platform != "linux" or shutil.which("cc") is None:
        pytest.skip("it takes Linux and a compiler")
    path = tmp_path_factory.mktemp("files") / build.DEVICE
    build.compile_device(path)
    return path


@pytest.mark.parametrize(
    ("action", "content"),
    [
        ("open('data/large.bin', 'wb').write(b'new')", b"new"),
        ("open('data/large.bin', 'ab').write(b'end')", b"k...end"),
        ("os.write(os.open('large.bin', os.O_RDWR, dir_fd=os.open('data', 0)), b'K')", b"K..."),
        ("ctypes.CDLL(None).fopen(b'data/large.bin', b'w')", b""),
        ("open(os.path.abspath('data/large.bin'), 'r+b').write(b'K')", b"K..."),
        ("os.remove('data/large.bin')", None),
        ("shutil.rmtree('data')", None),
    ],
)  # fmt: skip
def test_the_original_stays_as_it_is(
    original: Path, copy: Sandbox, device: Path, action: str, content: bytes | None
) -> None:
    environment = {
        **os.environ,
        "LD_PRELOAD": str(device),
        "MEMAGENT_REHEARSAL_FOLDER": str(copy.folder),
        "MEMAGENT_REHEARSAL_WRITES": str(copy.writes),
    }
    script = f"import ctypes, os, shutil\n{action}\nopen('log.txt', 'w').write('changed')"
    command = [sys.executable, "-c", script]
    subprocess.run(command, cwd=copy.folder, env=environment, check=True)
    assert (original / "data" / "large.bin").read_bytes() == LARGE
    assert (original / "log.txt").read_text() == "kept"
    changes = dict(copy.changes())
    assert changes.pop("log.txt") == len("changed")
    if content is None:
        assert changes == {}
    else:
        content = content.replace(b"k...", LARGE).replace(b"K...", b"K" + LARGE[1:])
        assert changes == {"data/large.bin": len(content)}
        assert (copy.folder / "data" / "large.bin").read_bytes() == content


def test_writes_elsewhere_are_listed(
    copy: Sandbox, device: Path, tmp_path: Path, monkeypatch
) -> None:
    elsewhere = tmp_path / "elsewhere.txt"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    environment = {
        **os.environ,
        "LD_PRELOAD": str(device),
        "MEMAGENT_REHEARSAL_FOLDER": str(copy.folder),
        "MEMAGENT_REHEARSAL_WRITES": str(copy.writes),
    }
    script = f"open({str(elsewhere)!r}, 'w'); open('log.txt', 'a'); open('/dev/null', 'w')"
    subprocess.run([sys.executable, "-c", script], cwd=copy.folder, env=environment, check=True)
    assert copy.writes_outside() == [str(elsewhere)]
