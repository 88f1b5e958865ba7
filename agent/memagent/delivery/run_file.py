"""Run files: frames of exactly what a server is, or would have been, sent. One format for two uses.

1. Without a server the file is the recording. With one it is the spool: what the server has not acknowledged yet.
2. Layout: the line `memagent run file 1`, the frame of the run's start, then more frames: kind (1 byte: s, b, p, n, f, d), length and
   CRC-32 of the body (uint32, little endian), body. Reading ends at a frame that is torn or damaged.
3. A *draft* (kind d) holds the newest rows of the batch that is still being gathered, as a batch message with unpacked columns.
   Drafts stay at the end of the file, and the batch, when it is made, takes their place. Only a killed process leaves drafts;
   readers get them as the batch they would have become.
4. The writer holds a lock (flock) on its file as long as it lives. A file appears under its name whole and locked.
5. Nothing is synced to the disk: that is for machines that lose power, and this is for processes that get killed.
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

from memagent.delivery.envelope import Envelope, Kind
from memagent.delivery.partial_batch import merge_drafts
from memagent.errors import WireError

MAGIC = b"memagent run file 1\n"
SUFFIX = ".memagent"
_FRAME = struct.Struct("<cII")
_LETTERS: dict[Kind, bytes] = {
    "start": b"s",
    "batch": b"b",
    "prediction": b"p",
    "snapshot": b"n",
    "finish": b"f",
}
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}
_DRAFT = b"d"

_written: weakref.WeakSet[RunFile] = weakref.WeakSet()


class RunFile:
    """The file of one rank and attempt, as its process writes it; made when the first parcel comes.

    Methods raise OSError where the disk is full or the folder cannot be written; nothing half stays in the file then. Offsets are
    bytes. Calls come one at a time: the caller has the lock.
    """

    def __init__(self, path: Path, start: Envelope) -> None:
        self.path, self.start = path, start
        self.first = self.end = len(MAGIC) + _FRAME.size + len(start.body)
        self._drafts = b""
        self._fd: int | None = None
        self._is_closed = False
        _written.add(self)

    def append(self, item: Envelope) -> None:
        """Add a parcel. A batch takes the place of its drafts; anything else goes before them."""
        self._rewrite(
            self.end,
            _frame(_LETTERS[item.kind], item.body),
            b"" if item.kind == "batch" else self._drafts,
        )

    def draft(self, body: bytes) -> None:
        """Add rows of the batch that is still being gathered."""
        frame = _frame(_DRAFT, body)
        _write_all(self._open(), frame, self.end + len(self._drafts))
        self._drafts += frame

    def read(self, at: int) -> tuple[Envelope, int]:
        """The parcel at an offset, and the offset of the next one. Raises WireError where the file was damaged by somebody."""
        fd = self._open()
        letter, length, checksum = _FRAME.unpack(
            os.pread(fd, _FRAME.size, at).ljust(_FRAME.size, b"\0")
        )
        body = os.pread(fd, length, at + _FRAME.size) if letter in _KINDS else b""
        if letter not in _KINDS or len(body) != length or zlib.crc32(body) != checksum:
            raise WireError(f"{self.path} was damaged")
        return Envelope(_KINDS[letter], self.start.run_id, body), at + _FRAME.size + length

    def forget(self) -> None:
        """Leave only the run's start, and drafts: the far end has the rest."""
        if self._fd is not None:
            self._rewrite(self.first, b"", self._drafts)

    def close(self, *, remove: bool = False) -> None:
        """Release the file; with `remove` nothing of it is left, unless there are drafts. Safe to call twice."""
        self._is_closed = True
        if self._fd is not None:
            if remove and not self._drafts:
                with contextlib.suppress(OSError):
                    self.path.unlink()
            os.close(self._fd)
            self._fd = None

    def abandon(self) -> None:
        """In a forked child: the file is the parent's. Its lock is too, for as long as the parent keeps its descriptor."""
        self.close()

    def _rewrite(self, at: int, frame: bytes, drafts: bytes) -> None:
        """Make `frame` and `drafts` what follows after `at`. A kill inside the write itself may cost the drafts, nothing else."""
        fd = self._open()
        try:
            _write_all(fd, frame + drafts, at)
        except OSError:
            self._drafts = b""
            with contextlib.suppress(OSError):
                os.ftruncate(fd, self.end)
            raise
        self.end, self._drafts = at + len(frame), drafts
        with contextlib.suppress(
            OSError
        ):  # what is left behind the end can be told by its sequence number
            os.ftruncate(fd, self.end + len(drafts))

    def _open(self) -> int:
        if self._is_closed:
            raise OSError("the file is closed")
        if self._fd is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = _create(self.path, MAGIC + _frame(_LETTERS["start"], self.start.body))
        return self._fd


def read_frames(path: Path) -> Iterator[tuple[Kind, bytes]]:
    """Kind and body of every whole frame of a run file, drafts as the batch they would have become.

    Stops at a torn or damaged frame: `unread_bytes` tells. Raises WireError for another file.
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
    """How much of the file lies behind the last whole frame. Raises WireError for another file."""
    end = max((end for _, _, end in _frames(path)), default=len(MAGIC))
    return path.stat().st_size - end


def try_lock(fd: int) -> bool:
    """Whether the file is ours now. Raises OSError on a filesystem that knows no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _frames(path: Path) -> Iterator[tuple[bytes, bytes, int]]:
    """Letter and body of every whole frame, and the offset behind it."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise WireError(f"{path} is no run file of memagent")
        while len(head := file.read(_FRAME.size)) == _FRAME.size:
            letter, length, checksum = _FRAME.unpack(head)
            if letter not in _KINDS and letter != _DRAFT:
                return
            body = file.read(length)
            if len(body) != length or zlib.crc32(body) != checksum:
                return
            yield letter, body, file.tell()


def _create(path: Path, content: bytes) -> int:
    """Descriptor of a new, locked file; it appears under its name when it has its content."""
    unborn = path.with_name(path.name + ".new")
    fd = os.open(unborn, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(
            OSError
        ):  # a filesystem without locks: `memagent sync` leaves its files alone
            try_lock(fd)
        _write_all(fd, content, 0)
        if path.exists():
            raise FileExistsError(f"{path} exists")
        unborn.rename(path)
    except OSError:
        os.close(fd)
        with contextlib.suppress(OSError):
            unborn.unlink()
        raise
    return fd


def _frame(letter: bytes, body: bytes) -> bytes:
    return _FRAME.pack(letter, len(body), zlib.crc32(body)) + body


def _write_all(fd: int, data: bytes, at: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], at + written)


def _abandon_all() -> None:
    for file in list(_written):
        file.abandon()


os.register_at_fork(after_in_child=_abandon_all)
