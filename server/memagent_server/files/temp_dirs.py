"""Temporary folders that don't outlive a killed owner for long: the next owner deletes them.

1. An owner creates its folder and locks the file `owner` in it. It deletes the folder when it is
   done.
2. The system releases a lock when its process ends, even if it's killed. Creating a folder deletes
   those of the same prefix and user whose lock is free.
3. The file gets its name only after it is locked, so no folder in use has an unlocked owner.
   Folders without the file are left alone.
4. Without `flock` (on Windows), the folders of killed processes are left behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from memagent_server.files import file_lock

OWNER = "owner"


@contextlib.contextmanager
def folder(prefix: str, clean_up: Callable[[Path], object] = lambda _: None) -> Iterator[Path]:
    """Create a folder PREFIX*, and delete it afterwards. Raises OSError.

    Abandoned folders are deleted first; `clean_up` is called with each of them before.
    """
    _delete_abandoned(prefix, clean_up)
    path = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        with _lock_owner(path):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _lock_owner(path: Path) -> Iterator[None]:
    # Children don't inherit the descriptor: a folder that only they use is abandoned.
    with (path / "new").open("wb") as owner:
        file_lock.lock(owner.fileno())
        (path / "new").rename(path / OWNER)
        yield


def _delete_abandoned(prefix: str, clean_up: Callable[[Path], object]) -> None:
    if not file_lock.IS_SUPPORTED:
        return
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _open_owner(path) as owner:
            if file_lock.try_lock(owner):
                clean_up(path)
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _open_owner(path: Path) -> Iterator[int]:
    """Open the `owner` file of this user's folder.

    Raises OSError for any other: another user could plant a trap there.
    """
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to another user")
    descriptor = os.open(path / OWNER, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
