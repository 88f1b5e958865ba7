"""The harness of the codec's fuzzer: what it takes, and that it notices a difference."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.reliability import codec
from memagent.errors import WireError

CHUNK = codec.chunk_of(b"\x02\x02\x05" + bytes(range(1, 9)))


@pytest.mark.parametrize("data", codec.seeds())
def test_its_seeds_are_accepted_and_broken_ones_refused(data):
    source = Random(7)
    assert codec.take(data)
    assert not codec.take(data[: len(data) // 2]) or data[0] >= 0xA0
    for _ in range(200):
        at = source.randrange(len(data))
        codec.take(data[:at] + source.randbytes(2) + data[at + 2 :])


def test_a_chunk_that_agent_and_server_read_differently_is_noticed(monkeypatch):
    codec.compare(CHUNK)
    with pytest.raises(WireError):
        codec.compare(CHUNK[:-9])
    read = codec.unpack
    monkeypatch.setattr(codec, "unpack", lambda chunk: read(chunk) | {"step": [0]})
    with pytest.raises(AssertionError):
        codec.compare(CHUNK)
