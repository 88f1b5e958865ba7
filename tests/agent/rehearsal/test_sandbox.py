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
from memagent.rehearsal.reaper import TemporaryFolder, temporary_folder
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
def scratch():
    with temporary_folder() as made:
        yield made
    assert not made.folder.exists()


@pytest.fixture
def copy(original: Path, scratch: TemporaryFolder) -> Sandbox:
    return Sandbox.of(original, scratch)


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
    with temporary_folder() as scratch:
        made = Sandbox.of(original, scratch)
        assert made.shared == ["data"]
        assert (made.folder / "data").is_symlink()
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


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch) -> Path:
    """A folder that isn't the script's, with a file and a folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    folder = tmp_path / "elsewhere"
    (folder / "old").mkdir(parents=True)
    (folder / "old.txt").write_text("old")
    return folder


@pytest.mark.parametrize(
    ("action", "listed"),
    [
        ("open(f'{e}/new.txt', 'w'); open('log.txt', 'a'); open('/dev/null', 'w')", ["new.txt"]),
        ("os.mkdir(f'{e}/new'); os.mkdir('new'); os.rmdir('new')", ["new/"]),
        ("os.mkdir('new', dir_fd=os.open(e, 0))", ["new/"]),
        ("os.rmdir(f'{e}/old/')", ["old/"]),
        ("os.unlink(f'{e}/old.txt'); os.unlink('log.txt')", ["old.txt"]),
        ("os.replace(f'{e}/old.txt', f'{e}/new.txt')", ["new.txt", "old.txt"]),
        ("os.rename(f'{e}/old.txt', 'log.txt')", ["old.txt"]),
        ("shutil.rmtree(f'{e}/old')", ["old/"]),
        ("ctypes.CDLL(None).remove(f'{e}/old'.encode())", ["old/"]),
        ("os.mkdir(f'{e}/__pycache__')", []),
        ("ctypes.CDLL(None).mkdir(f'{e}/old'.encode(), 0o700)", []),
    ],
)
def test_changes_elsewhere_are_listed(
    copy: Sandbox, device: Path, elsewhere: Path, action: str, listed: list[str]
) -> None:
    environment = {
        **os.environ,
        "LD_PRELOAD": str(device),
        "MEMAGENT_REHEARSAL_FOLDER": str(copy.folder),
        "MEMAGENT_REHEARSAL_WRITES": str(copy.writes),
    }
    script = f"import ctypes, os, shutil\ne = {str(elsewhere)!r}\n{action}"
    subprocess.run([sys.executable, "-c", script], cwd=copy.folder, env=environment, check=True)
    assert copy.writes_outside() == [f"{elsewhere}/{name}" for name in listed]
