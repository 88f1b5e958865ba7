"""Folders of killed owners are deleted by the next one, those of living owners are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager

import pytest

from memagent_server import files

OWNER = """
import sys
from memagent_server import files
with files.folder("memagent-test-") as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def owner(temporary):
    """Another process with its own folder: (process, folder)."""
    command = [sys.executable, "-c", OWNER]
    environ = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process, temporary / process.stdout.readline().strip()


def test_it_is_deleted_after_use(temporary):
    with files.folder("memagent-test-") as folder:
        (folder / "file").write_text("something")
        assert folder.parent == temporary
    assert not list(temporary.iterdir())


def test_a_killed_owners_folder_is_deleted_by_the_next(temporary):
    tidied = []
    with owner(temporary) as (process, folder):
        with files.folder("memagent-test-", tidied.append):
            assert folder.exists() and not tidied
        process.send_signal(signal.SIGKILL)
        process.wait()
        with files.folder("memagent-another-"):
            assert folder.exists()
        with files.folder("memagent-test-", tidied.append):
            assert not folder.exists() and tidied == [folder]


@pytest.mark.parametrize("name", ["memagent-test-none", "memagent-test-link", "memagent-test-file"])
def test_other_folders_are_not_deleted(temporary, name):
    target = temporary / "target"
    target.mkdir()
    (target / files.OWNER).touch()
    if name.endswith("none"):
        (temporary / name).mkdir()
    elif name.endswith("link"):
        (temporary / name).symlink_to(target)
    else:
        (temporary / name).touch()
    with files.folder("memagent-test-"):
        assert (temporary / name).exists() and (target / files.OWNER).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to somebody else")
def test_folders_of_other_users_are_not_deleted(temporary):
    folder = temporary / "memagent-test-theirs"
    folder.mkdir()
    (folder / files.OWNER).touch()
    os.chown(folder, 65_534, 65_534)
    with files.folder("memagent-test-"):
        assert folder.exists()
