"""Chunks read as arrays equal those of the wire's reader, and have the same limits."""

from __future__ import annotations

from itertools import accumulate

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent.errors import WireError
from memagent.wire.columns import MAX_INT, pack, read_header, unpack
from memagent_server.store import chunks

INTS = st.one_of(st.none(), st.integers(-MAX_INT + 1, MAX_INT - 1))
FLOATS = st.one_of(st.none(), st.floats(width=64))


@st.composite
def columns(draw):
    rows = draw(st.integers(1, 20))
    results = {"step": sorted(draw(st.lists(st.integers(0, 10**6), min_size=rows, max_size=rows)))}
    for number in range(draw(st.integers(0, 4))):
        name, values = draw(st.sampled_from([(f"c{number}_bytes", INTS), (f"c{number}", FLOATS)]))
        results[name] = draw(st.lists(values, min_size=rows, max_size=rows))
    return results


@settings(max_examples=150, deadline=None)
@given(columns=columns(), codec=st.sampled_from(["zlib", "zstd"]))
def test_arrays_and_lists_of_a_chunk_are_equal(columns, codec):
    packed = pack(columns, codec=codec)
    read = chunks.read_arrays(packed)
    listed = unpack(packed)
    assert read.header == read_header(packed)
    assert chunks.array_stats(read) == chunks.column_stats(listed)
    newest = {
        name: next((value for value in reversed(of) if value is not None), None)
        for name, of in listed.items()
    }
    assert chunks.newest_values(read) == {
        name: of if finite(of) else None for name, of in newest.items()
    }
    odd = {
        name: [value for value in of if value is not None and not finite(value)]
        for name, of in listed.items()
    }
    assert {name: str(value) for name, value in read.floats.first_not_finite().items()} == {
        name: str(of[0]) for name, of in odd.items() if of
    }
    for block in (read.ints, read.floats):
        for name in block.names:
            assert block.has_all(name) == (None not in listed[name])
            assert block.has_any(name) == any(value is not None for value in listed[name])
            if block.has_all(name):
                assert [str(value) for value in block.column(name).tolist()] == [
                    str(value) for value in listed[name]
                ]


@pytest.mark.parametrize(
    "steps", [[2**61, 2**61], [2**62 - 1, 2**62 - 1, 2**62 - 1, 2**62 - 1], [-(2**62)], [-(2**63)]]
)
def test_sums_of_differences_out_of_bounds_are_refused(steps):
    """`pack` can't create them, but a client can; some wrap around within 64 bits."""
    name = "allocated_bytes"
    packed = with_differences(steps, name)
    assert any(abs(value) >= MAX_INT for value in accumulate(steps))
    with pytest.raises(WireError, match="less than") as refusal:
        chunks.read_arrays(packed)
    assert refusal.value.field == f"columns.{name}"


def with_differences(differences, name):
    """A sound chunk whose int column holds these differences, whatever they add up to."""
    import zlib

    planes = [difference.to_bytes(8, "little", signed=True) for difference in differences]
    raw = b"".join(bytes(plane[byte] for plane in planes) for byte in range(8))
    honest = pack({name: [0] * len(differences)}, codec="zlib")
    header = msgspec.structs.replace(read_header(honest), crc32=zlib.crc32(raw))
    head = msgspec.msgpack.encode(header)
    return b"MAC1" + len(head).to_bytes(4, "little") + head + zlib.compress(raw)


def finite(value):
    return value is not None and abs(value) != float("inf") and value == value
