"""Chunks round-trip, are small, and invalid ones are refused."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import textwrap
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.errors import WireError
from memagent.wire.columns import (
    MAX_INT,
    ChunkHeader,
    ColumnHeader,
    pack,
    read_header,
    read_payload,
    unpack,
)
from memagent.wire.fields import BY_NAME, FIELDS, Field, kind_of, scalar_kind_of

ints = st.one_of(st.none(), st.integers(-MAX_INT + 1, MAX_INT - 1))
floats = st.one_of(st.none(), st.floats(allow_nan=False))


@given(
    st.lists(st.tuples(ints, floats), min_size=1, max_size=60),
    st.sampled_from(["zlib", "zstd", "none"]),
)
def test_it_unpacks_the_packed_values(rows, codec):
    columns = {"a_bytes": [row[0] for row in rows], "loss": [row[1] for row in rows]}
    assert unpack(pack(columns, codec=codec)) == columns


def test_it_keeps_nan_and_infinities_of_floats():
    values = unpack(pack({"loss": [math.nan, math.inf, -math.inf, -0.0]}))["loss"]
    assert (
        math.isnan(values[0])
        and values[1:3] == [math.inf, -math.inf]
        and math.copysign(1, values[3]) == -1
    )


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel keeps RLIMIT_DATA only on Linux"
)
def test_it_packs_without_a_codec_where_no_memory_is_left_to_compress():
    code = """
        import resource
        from memagent.wire.columns import pack, read_header, unpack
        sizes = [row * 2654435761 % 2**31 for row in range(400)]
        columns = {"step": list(range(400)), "a_bytes": sizes, "b_bytes": sizes, "c_bytes": sizes}
        assert read_header(pack(columns)).codec == "zstd"
        resource.setrlimit(resource.RLIMIT_DATA, (2**28, 2**28))
        kept = []
        try:
            while True:
                kept.append(bytearray(2**15))
        except MemoryError:
            del kept[-4:]
        try:
            pack(columns)
        except MemoryError:
            packed = pack(columns, codec="none")
        kept.clear()
        assert unpack(packed) == columns
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_it_reads_only_the_columns_asked_for():
    chunk = pack({"step": [1, 2], "a_bytes": [3, None], "b_bytes": [None, 5]})
    assert unpack(chunk, only={"b_bytes", "absent"}) == {"b_bytes": [None, 5]}


def test_its_header_describes_its_contents():
    header = read_header(pack({"step": [7, 8, 9], "a_bytes": [1, 2, 3]}, codec="zlib"))
    assert (header.rows, header.first_step, header.last_step, header.codec) == (3, 7, 9, "zlib")
    assert [(column.name, column.kind) for column in header.columns] == [
        ("step", "int"),
        ("a_bytes", "int"),
    ]


def test_a_steady_run_costs_few_bytes_a_sample():
    rows = 500
    steady = {f"c{n}_bytes": [10**10 + n] * rows for n in range(18)}
    chunk = pack(
        {"step": list(range(rows)), "time_s": [1e9 + 0.1 * row for row in range(rows)], **steady},
        codec="zlib",
    )
    assert len(chunk) / rows < 20


def test_the_caller_can_make_a_bytes_column_float():
    columns = {"step": [1], "cache_bytes": [1.5]}
    assert unpack(pack(columns, kind_of=scalar_kind_of)) == columns
    with pytest.raises(WireError, match="cache_bytes"):
        pack(columns)


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"a_bytes": [1], "b_bytes": [1, 2]}, "b_bytes"),
        ({"a_bytes": [1, 2], "b_bytes": [1]}, "b_bytes"),
        ({"a_bytes": [MAX_INT]}, "a_bytes"),
        ({"a_bytes": ["x"]}, "a_bytes"),
        ({"bad\nname": [1.0]}, "bad\nname"),
        ({"a_bytes": []}, "columns"),
        ({}, "columns"),
    ],
)
def test_it_refuses_unpackable_values_and_names_them(columns, field):
    with pytest.raises(WireError) as caught:
        pack(columns)
    assert caught.value.field == field


def test_every_damaged_byte_is_detected_or_harmless():
    columns = {"step": list(range(50)), "a_bytes": [row * row for row in range(50)]}
    chunk = pack(columns, codec="zlib")
    generator = random.Random(1)
    for _ in range(500):
        damaged = bytearray(chunk)
        damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        try:
            result = unpack(bytes(damaged))
        except WireError:
            continue
        assert list(result.values()) == list(
            columns.values()
        )  # a column's name may differ: the checksum covers the values


@pytest.mark.parametrize("cut", [0, 3, 8, 20, -1])
def test_a_truncated_chunk_is_refused(cut):
    chunk = pack({"step": [1, 2, 3]}, codec="zlib")
    with pytest.raises(WireError):
        unpack(chunk[:cut])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_wire_error(noise):
    for data in (noise, b"MAC1" + noise, b"MAC1\x10\x00\x00\x00" + noise):
        with pytest.raises(WireError):
            unpack(data)


@pytest.mark.parametrize("codec", ["zlib", "zstd"])
def test_a_decompression_bomb_is_not_expanded(codec):
    small, large = pack({"step": [1]}, codec=codec), pack({"step": [0] * 100_000}, codec=codec)
    head = int.from_bytes(small[4:8], "little") + 8
    body = large[int.from_bytes(large[4:8], "little") + 8 :]
    with pytest.raises(WireError, match="truncated or damaged"):
        unpack(small[:head] + body)


# The layout, byte by byte


def test_a_chunk_has_the_documented_layout():
    chunk = pack({"step": [1, 258, None], "loss": [1.0, -1.0, 1.0]}, codec="none")
    header = read_header(chunk)
    length = int.from_bytes(chunk[4:8], "little")
    assert chunk[:4] == b"MAC1"
    assert msgspec.msgpack.decode(chunk[8 : 8 + length], type=ChunkHeader) == header
    steps = (
        b"\x03"  # bits of the rows that have a value
        + b"\x01\x01\x00"  # low bytes of 1, of 258 - 1 = 257 and of the missing value's 0
        + b"\x00\x01\x00"  # second bytes
        + bytes(18)
    )
    # 1.0 is 3ff0..., -1.0 is bff0...: the xor of the two is 8000...
    losses = bytes(18) + b"\xf0\x00\x00" + b"\x3f\x80\x80"
    assert chunk[8 + length :] == steps + losses
    assert read_payload(chunk) == (header, steps + losses)
    assert header == ChunkHeader(
        rows=3,
        columns=[ColumnHeader("step", "int", True), ColumnHeader("loss", "float", False)],
        codec="none",
        raw_bytes=49,
        crc32=zlib.crc32(steps + losses),
        first_step=1,
        last_step=258,
        version=1,
    )


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 17])
def test_the_bitmap_has_a_bit_per_row(rows):
    columns = {"step": list(range(rows)), "a_bytes": [None, *range(rows - 1)]}
    chunk = pack(columns, codec="none")
    assert unpack(chunk) == columns
    assert read_header(chunk).raw_bytes == 16 * rows + -(-rows // 8)


def test_a_chunk_without_steps_has_no_first_and_last_step():
    header = read_header(pack({"a_bytes": [1]}))
    assert (header.first_step, header.last_step) == (None, None)
    header = read_header(pack({"step": [None, 4, 5, None]}))
    assert (header.first_step, header.last_step) == (4, 5)


def test_a_column_of_missing_values_costs_nothing_after_compression():
    rows = 10_000
    assert len(pack({"step": [0] * rows, "a_bytes": [None] * rows}, codec="zlib")) < 1_000


# Limits


def test_a_chunk_holds_up_to_100_000_rows():
    assert read_header(pack({"step": [0] * 100_000})).rows == 100_000
    with pytest.raises(WireError, match="1 to 100000 rows, got 100001"):
        pack({"step": [0] * 100_001})


@pytest.mark.parametrize("value", [MAX_INT - 1, 1 - MAX_INT, 2**62 - 1])
def test_the_largest_differences_fit(value):
    assert unpack(pack({"a_bytes": [value, -value, value]})) == {"a_bytes": [value, -value, value]}
    for beyond in (2**62, -(2**62)):
        with pytest.raises(WireError, match=r"a_bytes must hold int values of less than 2\*\*62"):
            pack({"a_bytes": [0, beyond]})


def chunk_with(*, payload: bytes | None = None, **changes: object) -> bytes:
    """Return a chunk of one row whose header has been changed."""
    header, raw = read_payload(pack({"a_bytes": [1]}, codec="none"))
    head = msgspec.msgpack.encode(msgspec.structs.replace(header, **changes))
    body = raw if payload is None else payload
    return b"MAC1" + len(head).to_bytes(4, "little") + head + body


A = ColumnHeader("a_bytes", "int")


def test_the_unchanged_header_is_accepted():
    assert unpack(chunk_with()) == {"a_bytes": [1]}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 0}, "unknown chunk version 0"),
        ({"version": 2}, "unknown chunk version 2: upgrade this program"),
        ({"rows": 0, "raw_bytes": 0}, "too large or empty: 0 rows, 1 columns"),
        ({"rows": -1, "raw_bytes": -8}, "too large or empty: -1 rows"),
        ({"rows": 100_001, "raw_bytes": 800_008}, "too large or empty: 100001 rows"),
        ({"columns": [], "raw_bytes": 0}, "too large or empty: 1 rows, 0 columns"),
        ({"raw_bytes": 9}, r"must hold 8 bytes \(at most 67108864\)"),
        ({"raw_bytes": 7}, "must hold 8 bytes"),
        ({"columns": [A, A], "raw_bytes": 16}, "valid and distinct"),
        ({"columns": [ColumnHeader("a\n", "int")]}, "valid and distinct"),
        ({"crc32": 0}, "truncated or damaged"),
        ({"payload": bytes(7)}, "truncated or damaged"),
        ({"payload": bytes(9)}, "truncated or damaged"),
        ({"codec": "zlib"}, "cannot decompress"),
        ({"codec": "zstd"}, "truncated or damaged|cannot decompress"),
        ({"codec": "zlib", "payload": zlib.compress(bytes(8))[:-1]}, "truncated or damaged"),
        ({"codec": "zlib", "payload": zlib.compress(bytes(9))}, "truncated or damaged"),
    ],
)  # fmt: skip
def test_an_invalid_header_is_refused(changes, reason):
    with pytest.raises(WireError, match=reason) as caught:
        unpack(chunk_with(**changes))
    assert caught.value.field == "packed"


def test_a_header_may_announce_64_mib_in_1000_columns():
    columns = [ColumnHeader(f"c{number}", "int") for number in range(1001)]
    most = 64 * 2**20
    rows = most // 8 // 1000
    announced = {"rows": rows, "columns": columns[:1000], "raw_bytes": rows * 8000}
    assert read_header(chunk_with(**announced)).raw_bytes == rows * 8000
    with pytest.raises(WireError, match="1001 columns"):
        read_header(chunk_with(columns=columns, raw_bytes=8008))
    rows = 2**16
    exact = {"rows": rows, "columns": columns[:128], "raw_bytes": most}
    assert read_header(chunk_with(**exact)).raw_bytes == most
    with pytest.raises(WireError, match="at most 67108864"):
        read_header(chunk_with(**exact | {"rows": rows + 1, "raw_bytes": most + 1024}))


def test_a_header_has_up_to_half_a_mebibyte():
    def chunk(length: int) -> bytes:
        return b"MAC1" + length.to_bytes(4, "little") + bytes(16)

    with pytest.raises(WireError, match="cannot read the chunk's header"):
        read_header(chunk(2**19 - 8))
    with pytest.raises(WireError, match="header is too large"):
        read_header(chunk(2**19 - 7))


@pytest.mark.parametrize("chunk", [b"", b"MAC", b"MAC1", b"MAC1\0\0\0", b"MAC2" + bytes(40)])
def test_other_bytes_are_not_a_chunk(chunk):
    with pytest.raises(WireError, match="not a chunk of samples"):
        read_header(chunk)


def test_a_payload_of_another_size_is_refused_with_a_right_checksum():
    for payload in (bytes(7), bytes(9)):
        with pytest.raises(WireError, match="truncated or damaged"):
            unpack(chunk_with(payload=payload, crc32=zlib.crc32(payload)))


# Columns


def test_the_suffix_of_an_unknown_column_decides_its_kind():
    assert [kind_of(name) for name in ("new_bytes", "new_total", "new_ratio", "bytes")] == [
        "int", "int", "float", "float",
    ]  # fmt: skip
    assert (kind_of("segments"), kind_of("power_w")) == ("int", "float")
    assert [scalar_kind_of(name) for name in ("step", "time_s", "a_bytes")] == [
        "int", "float", "float",
    ]  # fmt: skip
    assert BY_NAME["step"] is FIELDS[0]
    with pytest.raises(AttributeError):
        Field("x", "int", "").kind = "float"


def test_a_column_has_a_name_of_128_characters_at_most():
    assert unpack(pack({"a" * 128: [1.0]})) == {"a" * 128: [1.0]}
    with pytest.raises(WireError, match="isn't a column name"):
        pack({"a" * 129: [1.0]})


def test_headers_are_immutable():
    header = read_header(pack({"step": [1]}))
    for part, name in ((header, "rows"), (header.columns[0], "name")):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(part, name, 1)


def test_constant_columns_are_packed_like_others():
    values = {"step": [7] * 100, "allocated_bytes": [2**40] * 100, "ooms_total": [None, *[0] * 99]}
    assert unpack(pack(values)) == values
    changed = pack({**values, "step": [*[7] * 99, 8]})
    assert unpack(changed)["step"] == [*[7] * 99, 8]
    with pytest.raises(WireError):
        pack({"step": [1, 1.0]})
