"""File locks between processes, temporary folders, and the files that come with the server.

The system releases a lock when its process ends, even if it's killed. Temporary folders therefore
don't outlive a killed owner for long:

1. An owner creates its folder and locks the file `owner` in it. It deletes the folder when it is
   done.
2. Creating a folder deletes those of the same prefix and user whose lock is free.
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
import time
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a Unix: there are no such locks
    fcntl = None  # type: ignore[assignment]

IS_SUPPORTED = fcntl is not None
_POLL_S = 0.0003


def lock(fd: int) -> None:
    """Lock an open file, waiting for others. Does nothing on systems without such locks."""
    if fcntl is not None:
        fcntl.flock(fd, fcntl.LOCK_EX)


def try_lock(fd: int) -> bool:
    """Lock an open file; return False if another process holds it, or if files can't be locked."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held by another process, or a filesystem without locks
        return False
    return True


def unlock(fd: int) -> None:
    if fcntl is not None:
        fcntl.flock(fd, fcntl.LOCK_UN)


class FileLock:
    """A lock with a deadline. If the file can't be created, it can never be acquired."""

    def __init__(self, path: str) -> None:
        self._fd: int | None = None
        if fcntl is not None:
            try:
                self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:  # a folder that can't be written
                self._fd = None

    def acquire(self, deadline: float) -> bool:
        """Poll until `deadline` (monotonic): a thread that waits in the kernel can't give up."""
        if self._fd is None:
            return False
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
            except OSError:  # a filesystem without locks
                return False
            time.sleep(_POLL_S)

    def release(self) -> None:
        if self._fd is not None:
            unlock(self._fd)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


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
        lock(owner.fileno())
        (path / "new").rename(path / OWNER)
        yield


def _delete_abandoned(prefix: str, clean_up: Callable[[Path], object]) -> None:
    if not IS_SUPPORTED:
        return
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _open_owner(path) as owner:
            if try_lock(owner):
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


_PACKAGE = Path(__file__).resolve().parent


def resource_dir(name: str) -> Path:
    """Return the folder `migrations`, `dashboards` or `docs`. Raises FileNotFoundError."""
    for candidate in (_PACKAGE / "_resources" / name, _PACKAGE.parent.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(
        f"{name}/ is missing from the installed package: reinstall memagent[server]"
    )
