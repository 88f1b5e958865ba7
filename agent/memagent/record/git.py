"""The version of the running code: commit and branch from `.git`, uncommitted changes from git.

Reading `.git` takes a tenth of a millisecond. A `git diff` may take seconds in a large repository
or on a network drive, so it has a time limit.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

from memagent.probe.detached import without_child_signals
from memagent.record.masking import mask_text

_DIFF_COMMAND = [
    "git",
    "--no-optional-locks",
    "diff",
    "--quiet",
    "--no-ext-diff",
    "--ignore-submodules=dirty",
    "HEAD",
    "--",
]


def find_repository() -> Path | None:
    """Return the working tree of the script, or else of the current folder."""
    folders = [Path.cwd()]
    if sys.argv and sys.argv[0] not in ("", "-c", "-m") and Path(sys.argv[0]).is_file():
        folders.insert(0, Path(sys.argv[0]).resolve().parent)
    for start in folders:
        for folder in (start, *start.parents):
            if (folder / ".git").exists():
                return folder
    return None


def describe_code(tree: Path) -> dict[str, str]:
    """Return `git_commit`, `git_branch` and `git_remote` of a working tree, as far as readable."""
    folder = _git_folder(tree)
    shared = _shared_folder(folder)
    facts: dict[str, str] = {}
    head = _read(folder / "HEAD")
    ref = head.removeprefix("ref: ") if head.startswith("ref: ") else None
    commit = head if ref is None else _resolve_ref(ref, folder, shared)
    if re.fullmatch(r"[0-9a-f]{40,64}", commit):
        facts["git_commit"] = commit
        if ref is not None:
            facts["git_branch"] = ref.removeprefix("refs/heads/")
    remote = re.search(r'\[remote "origin"\][^\[]*?\n\s*url\s*=\s*(\S+)', _read(shared / "config"))
    if remote is not None:
        facts["git_remote"] = mask_text(remote.group(1))
    return facts


class ChangeCheck:
    """Asks git whether tracked files differ from the commit, while the caller does other work.

    Writes nothing, not even the index. Call `result` once.
    """

    def __init__(self, tree: Path) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):  # git or sh is not installed
            start = _start_detached if hasattr(os, "killpg") else _start
            self._process = start(_DIFF_COMMAND, tree)

    def result(self, timeout_s: float) -> bool | None:
        """Return the answer, None if git doesn't give one within `timeout_s` from now."""
        if self._process is None:
            return None
        take_status = _detached_status if hasattr(os, "killpg") else _status
        status = take_status(self._process, timeout_s)
        return bool(status) if status in (0, 1) else None


def _start(
    command: list[str], folder: Path, stdout: int = subprocess.DEVNULL, *, in_session: bool = False
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603
        command,
        cwd=folder,
        env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        start_new_session=in_session,
    )


def _status(git: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    with git:
        try:
            return git.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            git.kill()


def _start_detached(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start `command` in the background of a shell that exits at once: see `detached`."""
    with without_child_signals():
        background = ["/bin/sh", "-c", '{ "$@"; echo $?; } &', "sh", *command]
        shell = _start(background, folder, subprocess.PIPE, in_session=True)
        shell.wait()
    return shell


def _detached_status(shell: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    assert shell.stdout is not None
    with shell.stdout as results:
        if select.select([results], [], [], timeout_s)[0]:
            return int(results.read() or -1)
    # A process that hangs on a dead network drive survives this: nothing waits for it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGKILL)
    return None


def _git_folder(tree: Path) -> Path:
    """Return `.git`, or the folder it refers to in a linked working tree or a submodule."""
    path = tree / ".git"
    return path if path.is_dir() else tree / _read(path).removeprefix("gitdir: ")


def _shared_folder(folder: Path) -> Path:
    common = _read(folder / "commondir")
    return folder / common if common else folder


def _resolve_ref(ref: str, folder: Path, shared: Path) -> str:
    for place in (folder, shared):
        if commit := _read(place / ref):
            return commit
    for line in _read(shared / "packed-refs").splitlines():
        commit, _, name = line.partition(" ")
        if name == ref:
            return commit
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
