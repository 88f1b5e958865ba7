"""Chunks round-trip, are small, and invalid ones are refused."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.errors import WireError
from memagent.wire.columns import MAX_INT, pack, read_header, unpack
from memagent.wire.fields import scalar_kind_of

ints = st.one_of(st.none(), st.integers(-MAX_INT + 1, MAX_INT - 1))
floats = st.one_of(st.none(), st.floats(allow_nan=False))


@given(
    st.lists(st.tuples(ints, floats), min_size=1, max_size=60), st.sampled_from(["zlib", "zstd"])
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
