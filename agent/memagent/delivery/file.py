"""Delivery to a local file, for runs without a server: frames of exactly what a server would have been sent.

Layout: the line `memagent run file 1`, then frames of kind (1 byte: s, b, p, f), length and CRC-32 of the body (uint32, little
endian) and the body. A torn last frame, left by a full disk or a killed process, is cut off before the next one is written.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from memagent.delivery.parcel import Kind, Parcel, Transport
from memagent.errors import DeliveryError, WireError

MAGIC = b"memagent run file 1\n"
_FRAME = struct.Struct("<cII")
_LETTERS: dict[Kind, bytes] = {"start": b"s", "batch": b"b", "prediction": b"p", "finish": b"f"}
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}


class FileTransport(Transport):
    """Appends to one file a rank and attempt; the folder is made when the first parcel comes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._end = 0

    def deliver(self, item: Parcel, *, timeout_s: float) -> None:
        """Raises DeliveryError where the disk is full or the folder cannot be written; nothing half stays in the file."""
        frame = _FRAME.pack(_LETTERS[item.kind], len(item.body), zlib.crc32(item.body)) + item.body
        try:
            fd = self._open()
            os.ftruncate(fd, self._end)
            self._end += _write_all(fd, frame, self._end)
        except OSError as error:
            raise DeliveryError(f"{self.path} cannot be written: {error.strerror}") from error

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        if self._fd is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._end = _write_all(fd, MAGIC, 0)
            self._fd = fd
        return self._fd


def read_frames(path: Path) -> Iterator[tuple[Kind, bytes]]:
    """Kind and body of every whole frame of a run file; stops at a torn or damaged one. Raises WireError for another file."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise WireError(f"{path} is no run file of memagent")
        while len(head := file.read(_FRAME.size)) == _FRAME.size:
            letter, length, checksum = _FRAME.unpack(head)
            body = file.read(length)
            if len(body) != length or zlib.crc32(body) != checksum or letter not in _KINDS:
                return
            yield _KINDS[letter], body


def _write_all(fd: int, data: bytes, at: int) -> int:
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], at + written)
    return written
