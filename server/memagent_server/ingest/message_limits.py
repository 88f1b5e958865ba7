"""Bound what a body would turn into, before msgspec builds its objects.

1. A byte of msgpack can become an empty list of 56 bytes, so a message has at most MAX_VALUES. A
   value takes at least a byte: short bodies need no count.
2. Arrays and maps of msgpack declare their lengths. The count adds them up, and ends at the first
   that exceeds the limit.
3. In JSON, every value but the first follows one of `,:[{`. Those in texts count as well.
4. A decimal with more digits than a double needs takes 10 to 500 µs to parse, so JSON has at most
   MAX_JSON_BYTES.
"""

from __future__ import annotations

from memagent.wire.codec import JSON
from memagent_server.http.problems import Problem

MAX_VALUES = 250_000
"""Keys count. An agent's largest snapshots have about as many: 2,000 stacks of 120 frames."""
MAX_JSON_BYTES = 2 * 2**20

_WIDTHS = [1] * 0x80 + [0] * 0x20 + [*range(1, 33)] + [1] * 4 + [0] * 28 + [1] * 32
"""Bytes of a msgpack value by its first byte; 0 if they depend on a length that follows."""
_WIDTHS[0xCA:0xD4] = [5, 9, 2, 3, 5, 9, 2, 3, 5, 9]
_WIDTHS[0xD4:0xD9] = [3, 4, 6, 10, 18]
_WIDTHS[0x80] = _WIDTHS[0x90] = 1  # empty map and array
_STR8 = 0xD9
_LENGTHS = {
    **{0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0)},  # bin
    **{0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)},  # ext, with a byte for its type
    **{0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)},  # str
}
"""Bytes of a length in bytes, and of what is between length and content."""
_COUNTS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Bytes of the length of an array or a map, and the values of an item."""


def check_values(body: bytes, content_type: str) -> None:
    """Raise Problem 413 for a body with more values, or more JSON, than a message has."""
    if len(body) <= MAX_VALUES:
        return
    if content_type == JSON and len(body) > MAX_JSON_BYTES:
        detail = f"JSON has at most {MAX_JSON_BYTES} bytes uncompressed."
        raise Problem(413, f"{detail} Send smaller messages, or msgpack.")
    if (count_json(body) if content_type == JSON else count_msgpack(body)) > MAX_VALUES:
        raise Problem(413, f"The body has more than {MAX_VALUES} values. Send smaller messages.")


def count_json(body: bytes) -> int:
    """Return a number that the number of values doesn't exceed."""
    return 1 + sum(body.count(separator) for separator in (b",", b":", b"[", b"{"))


def count_msgpack(body: bytes) -> int:
    """Return the number of values, or of those declared up to the first excess or damage.

    msgspec doesn't read on after damage, either.
    """
    offset, declared, missing = 0, 1, 1
    while missing and offset < len(body) and declared <= MAX_VALUES:
        missing -= 1
        tag = body[offset]
        width = _WIDTHS[tag]
        if tag == _STR8:  # the most frequent of those with a length
            width = 2 + int.from_bytes(body[offset + 1 : offset + 2], "big")
        elif not width:
            width, items = _measure(body, offset)
            declared += items
            missing += items
        offset += width
    return declared


def _measure(body: bytes, offset: int) -> tuple[int, int]:
    """Return the width in bytes of the value at `offset` without its items, and their number."""
    tag = body[offset]
    if tag in _LENGTHS:
        size, extra = _LENGTHS[tag]
        return 1 + size + extra + int.from_bytes(body[offset + 1 : offset + 1 + size], "big"), 0
    if tag in _COUNTS:
        size, values = _COUNTS[tag]
        return 1 + size, values * int.from_bytes(body[offset + 1 : offset + 1 + size], "big")
    is_map = tag < 0x90
    return 1, (tag & 0x0F) * (2 if is_map else 1)
