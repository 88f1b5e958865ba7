"""Files of a source: regular ones only, and no more of them in memory than needed.

Symlinks below a folder aren't followed: they may lead anywhere, in circles, or to a pipe that never
ends. W&B's `latest-run` is one, of a folder that is read anyway.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import BinaryIO

from memagent.errors import MemagentError

_DIGITS = re.compile(r"([0-9]+)")
TEXT_BYTES = 16 * 2**10
"""Limit for a text of a source. MLflow's is 8,000 characters."""


def files_below(
    path: Path, is_wanted: Callable[[str], bool], *, without: Collection[str] = ()
) -> Iterator[Path]:
    """Yield regular files with a wanted name at or below a path, in the order of their numbers.

    `without`: names of folders that aren't entered if there is a wanted file. Unreadable folders
    are left out.
    """
    if path.is_file():
        if is_wanted(path.name):
            yield path
        return
    for folder, folders, names in os.walk(path):
        wanted = sorted(filter(is_wanted, names), key=_numbered)
        folders[:] = sorted(name for name in folders if not wanted or name not in without)
        for name in wanted:
            file = Path(folder, name)
            if stat.S_ISREG(_mode(file)):
                yield file


def is_folder(path: Path) -> bool:
    """Return True for a folder, False for a symlink to one."""
    return stat.S_ISDIR(_mode(path))


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises MemagentError unless it's a regular file."""
    # O_NONBLOCK: opening a pipe would wait for its writer
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise MemagentError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise MemagentError(f"{path} isn't a regular file")
    return open(fd, "rb")  # noqa: PTH123


def read_text(path: Path) -> str:
    """Return the first TEXT_BYTES of a file, empty if it can't be read."""
    try:
        with open_regular(path) as file:
            return file.read(TEXT_BYTES).decode(errors="replace")
    except (MemagentError, OSError):
        return ""


def _numbered(name: str) -> list[str | int]:
    """Return a key by which file 9 comes before file 10."""
    return [
        int(part) if part.isdigit() and part.isascii() else part for part in _DIGITS.split(name)
    ]


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except OSError:  # removed meanwhile
        return 0
