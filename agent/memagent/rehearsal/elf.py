"""Read and write ELF tables of 64-bit shared libraries, as far as a rehearsal needs them.

`read` returns which symbols a library imports and exports. `write` makes a library of stubs without
a compiler.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from memagent.rehearsal.stub_code import Architecture, Stub

MAGIC = b"\x7fELF\x02\x01\x01"
PAGE = 1 << 16
"""The largest page of a host: code and data must not share one."""
DYNAMIC_SYMBOLS = 11
DYNAMIC_SECTION = 6
GLOBAL_FUNCTION = 0x12
BLOCK_BYTES = 4096
"""Zeros that every handle of a stub points to."""
NEEDED, HASH, STRINGS, SYMBOLS, STRINGS_SIZE, SYMBOL_SIZE, SONAME = 1, 4, 5, 6, 10, 11, 14


@dataclass(frozen=True)
class Library:
    """Names that a library imports from others, exports, and the libraries that it needs."""

    imported: frozenset[str]
    exported: frozenset[str]
    needed: tuple[str, ...]


def read(path: Path) -> Library | None:
    """Return the tables of a shared library, or None if the file is none."""
    with path.open("rb") as file:
        header = file.read(64)
        if header[:5] != MAGIC[:5] or len(header) < 64:
            return None
        (offset,) = struct.unpack_from("<Q", header, 40)
        size, count = struct.unpack_from("<HH", header, 58)
        file.seek(offset)
        sections = list(struct.iter_unpack("<IIQQQQIIQQ", file.read(size * count)))

        def content(index: int) -> bytes:
            file.seek(sections[index][4])
            return file.read(sections[index][5])

        imported, exported = set(), set()
        needed: list[str] = []
        for index, section in enumerate(sections):
            if section[1] not in (DYNAMIC_SYMBOLS, DYNAMIC_SECTION):
                continue
            strings = content(section[6])
            if section[1] == DYNAMIC_SECTION:
                entries = struct.iter_unpack("<qQ", content(index))
                needed = [_text(strings, value) for tag, value in entries if tag == NEEDED]
                continue
            for name, info, _, home, _, _ in struct.iter_unpack("<IBBHQQ", content(index)):
                if home == 0:
                    imported.add(_text(strings, name))
                elif info >> 4:
                    exported.add(_text(strings, name))
    return Library(frozenset(imported - {""}), frozenset(exported), tuple(needed))


def write(path: Path, stubs: Mapping[str, Stub], soname: str, architecture: Architecture) -> None:
    """Write a shared library for Linux that exports the stubs."""
    code_of = architecture.code_of
    names = sorted(stubs)
    strings, offsets = _string_table([*names, soname])
    header_size = 64 + 4 * 56
    table = _hash_table(names)
    symbols_at = header_size + len(table)
    strings_at = symbols_at + 24 * (len(names) + 1)
    code_at = -(-(strings_at + len(strings)) // 16) * 16
    sizes = [len(code_of(stubs[name], 0)) for name in names]
    starts = [code_at + sum(-(-size // 16) * 16 for size in sizes[:i]) for i in range(len(names))]
    code_end = starts[-1] + sizes[-1] if names else code_at
    data_at = -(-code_end // PAGE) * PAGE
    entries = [
        (SONAME, offsets[soname]),
        (HASH, header_size),
        (STRINGS, strings_at),
        (SYMBOLS, symbols_at),
        (STRINGS_SIZE, len(strings)),
        (SYMBOL_SIZE, 24),
        (0, 0),
    ]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    block_at = data_at + len(dynamic)
    symbols = [bytes(24)]
    code = bytearray(code_end - code_at)
    for name, start, size in zip(names, starts, sizes, strict=True):
        symbols.append(struct.pack("<IBBHQQ", offsets[name], GLOBAL_FUNCTION, 0, 1, start, size))
        code[start - code_at : start - code_at + size] = code_of(stubs[name], block_at - start)
    image = bytearray(data_at + len(dynamic))
    places = [
        (0, _header(architecture.elf_number) + _segments(code_end, data_at, len(dynamic))),
        (header_size, table),
        (symbols_at, b"".join(symbols)),
        (strings_at, strings),
        (code_at, bytes(code)),
        (data_at, dynamic),
    ]
    for at, part in places:
        image[at : at + len(part)] = part
    path.write_bytes(image)


def _text(strings: bytes, start: int) -> str:
    return strings[start : strings.index(b"\0", start)].decode("utf-8", "replace")


def _string_table(texts: list[str]) -> tuple[bytes, dict[str, int]]:
    table, offsets = bytearray(b"\0"), {}
    for text in texts:
        offsets[text] = len(table)
        table += text.encode() + b"\0"
    return bytes(table), offsets


def _hash(name: str) -> int:
    """Return the hash function of the System V ABI."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value


def _hash_table(names: list[str]) -> bytes:
    buckets, chains = [0] * max(1, len(names)), [0] * (len(names) + 1)
    for index, name in enumerate(names, start=1):
        bucket = _hash(name) % len(buckets)
        chains[index] = buckets[bucket]
        buckets[bucket] = index
    numbers = [len(buckets), len(chains), *buckets, *chains]
    return struct.pack(f"<{len(numbers)}I", *numbers) + bytes(4 * (len(numbers) % 2))


def _header(machine: int) -> bytes:
    head = MAGIC + bytes(9)
    return head + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0)


def _segments(code_end: int, data_at: int, dynamic_size: int) -> bytes:
    """Return code (read, execute), data (read, write), the dynamic table, and a plain stack."""

    def segment(kind: int, flags: int, at: int, size: int, memory: int, align: int) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, memory, align)

    return (
        segment(1, 5, 0, code_end, code_end, PAGE)
        + segment(1, 6, data_at, dynamic_size, dynamic_size + BLOCK_BYTES, PAGE)
        + segment(2, 6, data_at, dynamic_size, dynamic_size, 8)
        + segment(0x6474E551, 6, 0, 0, 0, 16)
    )
