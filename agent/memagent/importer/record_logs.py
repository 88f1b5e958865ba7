"""Files that are logs of checksummed records: TensorBoard's TFRecord, W&B's LevelDB log.

A length in a file is a claim: nothing is read or allocated by it unless the file is that long. A
record above RECORD_BYTES (a picture, a table) is passed over and counted.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from memagent.errors import MemagentError
from memagent.importer.source_files import open_regular

RECORD_BYTES = 2 * 2**20
"""Largest record that is read: of 2 bytes a value, protobuf makes 88 MiB of objects of it."""
_TF_HEAD = struct.Struct("<QI")
_TF_TAIL = struct.Struct("<I")
_WANDB_MAGIC = (b":W&B", struct.Struct("<HB"), (0xBEE1, 0))
_BLOCK_BYTES = 32 * 2**10
_LEVEL_HEAD = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class LogReader:
    """Iterates over the records of one file. Afterwards, the counts and `note` say what it lost."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.oversized = 0
        self.note: str | None = None

    def tf_records(self, checksum: Callable[[bytes], int]) -> Iterator[tuple[bytes, int]]:
        """Yield records of a TFRecord file with their stored checksums, which aren't checked.

        `checksum` is TensorFlow's masked CRC-32C. It ends where the file is torn or damaged.
        """
        head_checksum_of = lru_cache(checksum)  # lengths recur
        with open_regular(self.path) as file:
            size, at = os.fstat(file.fileno()).st_size, 0
            while at < size:
                head = file.read(_TF_HEAD.size)
                if len(head) < _TF_HEAD.size:
                    return self._end(at, size)
                length, head_checksum = _TF_HEAD.unpack(head)
                if head_checksum_of(head[:8]) != head_checksum:
                    return self._end(at, size, "damaged")
                end = at + _TF_HEAD.size + length + _TF_TAIL.size
                if end > size:
                    return self._end(at, size)
                if length > RECORD_BYTES:
                    self.oversized += 1
                    file.seek(end)
                else:
                    record = file.read(length)
                    yield record, *_TF_TAIL.unpack(file.read(_TF_TAIL.size))
                at = end
        return None

    def wandb_records(self) -> Iterator[bytes]:
        """Yield records of a `.wandb` file. Damage costs the rest of its block of 32 KiB.

        Raises MemagentError for other files.
        """
        damaged = 0
        record = bytearray()
        is_open = is_oversized = False
        with open_regular(self.path) as file:
            size = os.fstat(file.fileno()).st_size
            block = file.read(_BLOCK_BYTES)
            at = _check_wandb_head(self.path, block)
            begin = 0
            while True:
                for kind, fragment in _fragments(block, at):
                    if kind == 0:
                        # the newest block of a run in progress, or of a killed one, is just short
                        is_last = begin + len(block) >= size
                        damaged += not is_last
                        if is_last:
                            self._end(size - len(fragment), size)
                        is_open = False
                        continue
                    if kind in (_FULL, _FIRST):
                        record, is_open, is_oversized = bytearray(), True, False
                    if not is_open:
                        continue
                    if len(record) + len(fragment) > RECORD_BYTES:
                        record, is_oversized = bytearray(), True
                    elif not is_oversized:
                        record += fragment
                    if kind in (_FULL, _LAST):
                        is_open = False
                        self.oversized += is_oversized
                        if not is_oversized:
                            yield bytes(record)
                begin += len(block)
                block, at = file.read(_BLOCK_BYTES), 0
                if not block:
                    break
        if damaged:
            self.note = f"{self.path}: {damaged} of its blocks are damaged, and left out"

    def _end(self, at: int, size: int, what: str = "torn") -> None:
        self.note = f"{self.path} is {what} at byte {at:,} of {size:,}: the rest is left out"


def _check_wandb_head(path: Path, block: bytes) -> int:
    """Return the offset of the first record. Raises MemagentError for another file."""
    magic, numbers, expected = _WANDB_MAGIC
    size = len(magic) + numbers.size
    if len(block) < size or not block.startswith(magic):
        raise MemagentError(f"{path} isn't a W&B file: it doesn't begin with :W&B")
    if numbers.unpack(block[len(magic) : size]) != expected:
        raise MemagentError(f"{path} is of a version of W&B's format that memagent can't read")
    return size


def _fragments(block: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Yield kind and content of a block's fragments; 0 and what is left for a damaged one."""
    while len(block) - at >= _LEVEL_HEAD.size:
        checksum, length, kind = _LEVEL_HEAD.unpack_from(block, at)
        fragment = block[at + _LEVEL_HEAD.size : at + _LEVEL_HEAD.size + length]
        is_whole = len(fragment) == length and _FULL <= kind <= _LAST
        if not is_whole or zlib.crc32(fragment, zlib.crc32(bytes([kind]))) != checksum:
            yield 0, block[at:]
            return
        yield kind, fragment
        at += _LEVEL_HEAD.size + length
    if any(block[at:]):
        yield 0, block[at:]
