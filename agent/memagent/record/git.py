"""Which code runs: commit and branch by reading `.git` (a tenth of a millisecond), whether it was changed by asking git itself.

`git status` may take seconds in a large repository or on a network drive. So the question runs beside the script; the answer is taken
if it is there, and asked for again later.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from memagent.record.masking import masked_text


def find_repository() -> Path | None:
    """The working tree that the script lies in, or else the current folder."""
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-c", "-m") else None
    for start in (
        script.resolve().parent if script is not None and script.is_file() else None,
        Path.cwd(),
    ):
        for folder in (start, *start.parents) if start is not None else ():
            if (folder / ".git").exists():
                return folder
    return None


def describe_code(tree: Path) -> dict[str, str]:
    """`git_commit`, `git_branch` and `git_remote` of a working tree, as far as they can be read."""
    folder = _git_folder(tree)
    shared = _shared_folder(folder)
    facts: dict[str, str] = {}
    head = _read(folder / "HEAD")
    name = head.removeprefix("ref: ") if head.startswith("ref: ") else None
    commit = head if name is None else _commit_of(name, folder, shared)
    if re.fullmatch(r"[0-9a-f]{40,64}", commit):
        facts["git_commit"] = commit
    if name is not None and facts:
        facts["git_branch"] = name.removeprefix("refs/heads/")
    remote = re.search(r'\[remote "origin"\][^\[]*?\n\s*url\s*=\s*(\S+)', _read(shared / "config"))
    if remote is not None:
        facts["git_remote"] = masked_text(remote.group(1))
    return facts


class DirtyCheck:
    """Asks git, in a process of its own, whether tracked files of `tree` differ from the commit. Writes nothing, not even the index."""

    def __init__(self, tree: Path) -> None:
        self._answer: bool | None = None
        self._process: subprocess.Popen[bytes] | None = None
        command = [
            "git",
            "--no-optional-locks",
            "diff",
            "--quiet",
            "--no-ext-diff",
            "--ignore-submodules=dirty",
            "HEAD",
            "--",
        ]
        with contextlib.suppress(OSError):  # no git here
            self._process = subprocess.Popen(  # noqa: S603
                command,
                cwd=tree,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
            )

    @property
    def is_over(self) -> bool:
        return self._process is None

    def answer(self, timeout_s: float = 0.0) -> bool | None:
        """True for changed files, None while it is not known, or never will be."""
        if self._process is not None:
            try:
                status = self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return None
            self._process = None
            self._answer = {0: False, 1: True}.get(status)
        return self._answer

    def close(self) -> None:
        """Give up what has not been answered."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(
                subprocess.TimeoutExpired
            ):  # one that hangs on a dead network drive cannot be waited for
                process.wait(0.1)


def _git_folder(tree: Path) -> Path:
    """`.git`, or where a linked working tree or a submodule says that it is."""
    path = tree / ".git"
    if path.is_dir():
        return path
    return tree / _read(path).removeprefix("gitdir: ")


def _shared_folder(folder: Path) -> Path:
    common = _read(folder / "commondir")
    return folder / common if common else folder


def _commit_of(name: str, folder: Path, shared: Path) -> str:
    for place in (folder, shared):
        if found := _read(place / name):
            return found
    return next((commit for commit, packed in _packed(shared) if packed == name), "")


def _packed(shared: Path) -> Iterator[tuple[str, str]]:
    for line in _read(shared / "packed-refs").splitlines():
        commit, _, name = line.partition(" ")
        yield commit, name


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
