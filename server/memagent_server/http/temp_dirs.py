"""Folders among the temporary files that do not outlive their owner for long: the next owner takes away what a killed one left.

1. An owner makes its folder and locks the file `owner` in it for as long as it lives. It takes the folder away when it is done.
2. The system lets go of a lock when its process ends, however that ends. Who makes a folder removes those of the same name and the same
   user whose lock nobody holds.
3. The file gets its name once it is locked: no folder that is in use is ever seen without. Folders that lack the file are not touched.
4. Where files cannot be locked so (Windows), folders that a killed process left stay.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

OWNER = "owner"


@contextlib.contextmanager
def folder(prefix: str, tidy: Callable[[Path], object] = lambda _: None) -> Iterator[Path]:
    """A new folder PREFIX*, gone afterwards. Those that were left behind are gone, too; `tidy` is given each before. Raises OSError."""
    _sweep(prefix, tidy)
    path = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        with _owned(path):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _owned(path: Path) -> Iterator[None]:
    if fcntl is None:
        yield
        return
    with (path / "new").open(
        "wb"
    ) as owner:  # not passed on to children: what they leave is not in use any more
        fcntl.flock(owner, fcntl.LOCK_EX)
        (path / "new").rename(path / OWNER)
        yield


def _sweep(prefix: str, tidy: Callable[[Path], object]) -> None:
    if fcntl is None:
        return
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _found(path) as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            tidy(path)
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _found(path: Path) -> Iterator[int]:
    """The file `owner` of a folder of this user's. Raises OSError where there is none: somebody else may lay anything in wait there."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to somebody else")
    descriptor = os.open(path / OWNER, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
