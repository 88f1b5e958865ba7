"""Run file: the frames that a server was, or would have been, sent. One format for two uses.

1. Without a server, the file is the recording. With one, it's the spool of what the server hasn't
   acknowledged yet.
2. Layout: the line `memagent run file 1`, the frame of the run's start, then more frames. A frame
   is a kind (1 byte: s, b, p, n, f, d), length and CRC-32 of the body (uint32, little endian), and
   the body. Reading ends at a torn or damaged frame.
3. A *draft* (kind d) holds the newest rows of the batch in progress, as a batch message with
   unpacked columns. Drafts stay at the end of the file until the batch replaces them, so only a
   killed process leaves any. Readers get them as the batch that they would have become.
4. The writer holds a lock (flock) on its file as long as it lives. A file gets its name when it's
   complete and locked.
5. A script may close all files, and get the file's number for one of its own: that one is never
   written to or closed, and the file is opened again.
6. Nothing is synced to the disk: that would help if the machine loses power, not if a process is
   killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path

from memagent.delivery.envelope import Envelope, MessageKind
from memagent.delivery.partial_batch import merge_drafts
from memagent.errors import WireError
from memagent.probe.host_limits import close_own, file_id

MAGIC = b"memagent run file 1\n"
SUFFIX = ".memagent"
_FRAME = struct.Struct("<cII")
_LETTERS: dict[MessageKind, bytes] = {
    "start": b"s",
    "batch": b"b",
    "prediction": b"p",
    "snapshot": b"n",
    "finish": b"f",
}
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}
_DRAFT = b"d"

_open_files: weakref.WeakSet[RunFile] = weakref.WeakSet()


class RunFile:
    """The file of one rank and attempt, as its process writes it. Created with the first envelope.

    Methods raise OSError if the disk is full or the folder isn't writable; no partial frame stays
    in the file then. Offsets are bytes. Not thread-safe: the caller has a lock.
    """

    def __init__(self, path: Path, start: Envelope) -> None:
        self.path = path
        self.start = start
        self.first = self.end = len(MAGIC) + _FRAME.size + len(start.body)
        self._drafts = b""
        self._fd: int | None = None
        self._identity: tuple[int, int] | None = None
        self._is_closed = False
        _open_files.add(self)

    def append(self, item: Envelope) -> None:
        """Add an envelope. A batch replaces its drafts; anything else goes before them."""
        drafts = b"" if item.kind == "batch" else self._drafts
        self._rewrite(self.end, _frame(_LETTERS[item.kind], item.body), drafts)

    def draft(self, body: bytes) -> None:
        """Add rows of the batch in progress."""
        frame = _frame(_DRAFT, body)
        _write_all(self._open(), frame, self.end + len(self._drafts))
        self._drafts += frame

    def read(self, offset: int) -> tuple[Envelope, int]:
        """Return the envelope at an offset, and the offset of the next one.

        Raises WireError if another program damaged the file.
        """
        fd = self._open()
        # a short read is padded to a frame of an unknown letter
        head = os.pread(fd, _FRAME.size, offset).ljust(_FRAME.size, b"\0")
        letter, length, checksum = _FRAME.unpack(head)
        body = os.pread(fd, length, offset + _FRAME.size) if letter in _KINDS else b""
        if letter not in _KINDS or len(body) != length or zlib.crc32(body) != checksum:
            raise WireError(f"{self.path} was damaged")
        return Envelope(_KINDS[letter], self.start.run_id, body), offset + _FRAME.size + length

    def clear(self) -> None:
        """Remove all but the run's start and drafts, since the server has the rest."""
        if self._fd is not None:
            self._rewrite(self.first, b"", self._drafts)

    def close(self, *, remove: bool = False) -> None:
        """Release the file; with `remove`, delete it unless it has drafts. May be called twice."""
        self._is_closed = True
        if self._fd is not None:
            if remove and not self._drafts:
                with contextlib.suppress(OSError):
                    self.path.unlink()
            close_own(self._fd, self._identity)
            self._fd = None

    def abandon(self) -> None:
        """Close the descriptor in a forked child. File and lock stay the parent's."""
        if self._fd is None and not self._is_closed:
            # another thread of the parent may be creating the file, and rename it meanwhile
            for path in (_temporary(self.path), self.path):
                _close_all(path)
        # flock belongs to the open file, which the parent still has: its lock survives
        self.close()

    def _rewrite(self, offset: int, frame: bytes, drafts: bytes) -> None:
        """Write `frame` and `drafts` at an offset, and cut off what follows.

        A kill during the write may lose the drafts, nothing else.
        """
        fd = self._open()
        try:
            _write_all(fd, frame + drafts, offset)
        except OSError:
            self._drafts = b""
            with contextlib.suppress(OSError):
                os.ftruncate(fd, self.end)
            raise
        self.end = offset + len(frame)
        self._drafts = drafts
        with contextlib.suppress(OSError):  # readers skip old drafts by their sequence number
            os.ftruncate(fd, self.end + len(drafts))

    def _open(self) -> int:
        if self._is_closed:
            raise OSError("the file is closed")
        if self._fd is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = _create(self.path, MAGIC + _frame(_LETTERS["start"], self.start.body))
            self._identity = file_id(self._fd)
        elif file_id(self._fd) != self._identity:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            self._identity = file_id(self._fd)
            with contextlib.suppress(OSError):
                try_lock(self._fd)
        return self._fd


def read_frames(path: Path) -> Iterator[tuple[MessageKind, bytes]]:
    """Yield kind and body of every complete frame, drafts as the batch they would have become.

    Stops at a torn or damaged frame; see `unread_bytes`. Raises WireError for other files.
    """
    drafts: list[bytes] = []
    last_batch: bytes | None = None
    for letter, body, _ in _frames(path):
        if letter == _DRAFT:
            drafts.append(body)
            continue
        last_batch = body if letter == _LETTERS["batch"] else last_batch
        yield _KINDS[letter], body
    if (merged := merge_drafts(drafts, after=last_batch)) is not None:
        yield "batch", merged


def unread_bytes(path: Path) -> int:
    """Return the bytes after the last complete frame. Raises WireError for other files."""
    end = max((end for _, _, end in _frames(path)), default=len(MAGIC))
    return path.stat().st_size - end


def try_lock(fd: int) -> bool:
    """Return True if the lock is acquired. Raises OSError on a filesystem without locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _frames(path: Path) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield letter and body of every complete frame, and the offset after it."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise WireError(f"{path} isn't a run file of memagent")
        while len(head := file.read(_FRAME.size)) == _FRAME.size:
            letter, length, checksum = _FRAME.unpack(head)
            if letter not in _KINDS and letter != _DRAFT:
                return
            body = file.read(length)
            if len(body) != length or zlib.crc32(body) != checksum:
                return
            yield letter, body, file.tell()


def _create(path: Path, content: bytes) -> int:
    """Create a file with its content, locked, under its final name. Return the descriptor."""
    temporary = _temporary(path)
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # without locks, `memagent sync` skips the file
            try_lock(fd)
        _write_all(fd, content, 0)
        # rename would silently replace another recording
        if path.exists():
            raise FileExistsError(f"{path} exists")
        temporary.rename(path)
    except OSError:
        os.close(fd)
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return fd


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _close_all(path: Path) -> None:
    """Close every descriptor of a file. There may be none, and no file."""
    with contextlib.suppress(OSError):
        status = path.stat()
        for entry in Path("/dev/fd").iterdir():
            close_own(int(entry.name), (status.st_dev, status.st_ino))


def _frame(letter: bytes, body: bytes) -> bytes:
    return _FRAME.pack(letter, len(body), zlib.crc32(body)) + body


def _write_all(fd: int, data: bytes, offset: int) -> None:
    count = 0
    while count < len(data):
        count += os.pwrite(fd, data[count:], offset + count)


def _abandon_all() -> None:
    for file in list(_open_files):
        file.abandon()


os.register_at_fork(after_in_child=_abandon_all)
