"""The copy of a script's folder, and what the device does when a link is opened for writing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from memagent.errors import RehearsalError
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
        "MEMAGENT_REHEARSAL_FOLDER": str(copy.tree),
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
    (tmp_path / "temporary").mkdir()
    folder = tmp_path / "elsewhere"
    (folder / "old").mkdir(parents=True)
    (folder / "old.txt").write_text("old")
    (tmp_path / "beside.txt").write_text("beside")
    return folder


@pytest.mark.parametrize(
    ("action", "listed"),
    [
        ("open(f'{e}/new.txt', 'w'); open('log.txt', 'a'); open('/dev/null', 'w')", ["new.txt"]),
        ("os.mkdir(f'{e}/new'); os.mkdir('new'); os.rmdir('new')", ["new/"]),
        ("os.mkdir('new', dir_fd=os.open(e, 0))", ["new/"]),
        ("os.mkdir(f'{e}/new'); os.rmdir(f'{e}/new/')", ["new/"]),
        ("open(f'{e}/new', 'w'); os.unlink(f'{e}/new'); os.unlink('log.txt')", ["new"]),
        ("open('a', 'w'); os.rename('a', f'{e}/new')", ["new"]),
        ("os.mkdir(f'{e}/__pycache__')", []),
        ("ctypes.CDLL(None).mkdir(f'{e}/old'.encode(), 0o700)", []),
    ],
)
def test_changes_elsewhere_are_listed(
    elsewhere: Path, copy: Sandbox, device: Path, action: str, listed: list[str]
) -> None:
    run(copy, device, elsewhere, action)
    assert copy.writes_outside() == [f"{elsewhere}/{name}" for name in listed]


@pytest.mark.parametrize(
    ("action", "seen"),
    [
        ("open(f'{e}/old.txt', 'w').write('new')", None),
        ("ctypes.CDLL(None).fopen(f'{e}/old.txt'.encode(), b'w')", None),
        (
            "f = open(f'{e}/old.txt', 'a+'); f.write('er'); f.seek(0)\n"
            "open('log.txt', 'w').write(f.read())",
            b"older",
        ),
        ("os.unlink(f'{e}/old.txt'); shutil.rmtree(f'{e}/old')", None),
        (
            "os.replace(f'{e}/old.txt', f'{e}/new.txt')\n"
            "shutil.copy(f'{e}/new.txt', 'log.txt'); os.unlink(f'{e}/new.txt')",
            b"old",
        ),
        ("os.rename('log.txt', f'{e}/old.txt'); open('log.txt', 'x')", b""),
        ("os.rename(f'{e}/old.txt', 'log.txt'); open('log.txt', 'a').write('er')", b"older"),
        ("open('../elsewhere/old.txt', 'w').write('new')", None),
        ("open('../beside.txt', 'a').write('new')", None),
    ],
)  # fmt: skip
def test_what_was_elsewhere_stays(
    elsewhere: Path, copy: Sandbox, device: Path, action: str, seen: bytes | None
) -> None:
    run(copy, device, elsewhere, action)
    assert (elsewhere / "old.txt").read_bytes() == b"old"
    assert (elsewhere / "old").is_dir() and not (elsewhere / "new.txt").exists()
    assert (elsewhere.parent / "beside.txt").read_text() == "beside"
    if seen is not None:
        assert (copy.folder / "log.txt").read_bytes() == seen


def run(copy: Sandbox, device: Path, elsewhere: Path, action: str) -> None:
    environment = {
        **os.environ,
        "LD_PRELOAD": str(device),
        "MEMAGENT_REHEARSAL_FOLDER": str(copy.tree),
        "MEMAGENT_REHEARSAL_WRITES": str(copy.writes),
        "TMPDIR": tempfile.gettempdir(),
    }
    script = f"import ctypes, os, shutil\ne = {str(elsewhere)!r}\n{action}"
    subprocess.run([sys.executable, "-c", script], cwd=copy.folder, env=environment, check=True)


ON_A_FULL_DISK = """
import json, os, sys, types
from pathlib import Path
from memagent.errors import RehearsalError
from memagent.rehearsal.measurement import Measurement
from memagent.rehearsal.reaper import temporary_folder
from memagent.rehearsal.sandbox import Sandbox

project = Path(sys.argv[1])
with temporary_folder() as scratch:
    copy = Sandbox.of(project, scratch)
    filler = open(scratch.folder / "filler", "wb", buffering=0)
    try:
        while filler.write(bytes(1 << 12)):
            pass
    except OSError as error:
        print(error.strerror)
    cuda = types.SimpleNamespace(is_initialized=lambda: False)
    measurement = Measurement(types.SimpleNamespace(cuda=cuda), copy.state, None)
    measurement.status = "failed"
    measurement.write()
    print(json.loads(copy.state.read_text())["status"])
    for number in range(9):
        (project / f"{number}.bin").write_bytes(bytes(200_000))
try:
    with temporary_folder() as scratch:
        Sandbox.of(project, scratch)
except RehearsalError as error:
    print(error)
print(os.listdir(os.environ["TMPDIR"]))
"""


def test_a_full_disk_is_named_and_leaves_room_for_the_state(tmp_path: Path) -> None:
    disk, project = tmp_path / "disk", tmp_path / "project"
    disk.mkdir()
    project.mkdir()
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk takes a user namespace")
    mount = f'mount -t tmpfs -o size=1m tmpfs {disk} && exec "$@"'
    ended = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", sys.executable, "-c", ON_A_FULL_DISK, project],
        env={**os.environ, "TMPDIR": str(disk)}, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    full, status, sentence, rest = ended.stdout.splitlines()
    assert (full, status, rest) == ("No space left on device", "failed", "[]")
    assert sentence.startswith(f"No space is left in {disk}, where a rehearsal copies")


def test_the_root_of_the_file_system_is_not_copied(scratch: TemporaryFolder) -> None:
    with pytest.raises(RehearsalError, match="root of the file system"):
        Sandbox.of(Path("/"), scratch)
