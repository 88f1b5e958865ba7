"""Messages are validated on arrival, and errors name the invalid field."""

from __future__ import annotations

import pytest

from memagent.errors import WireError
from memagent.wire.codec import JSON, decode, encode
from memagent.wire.messages import Batch, Chunk, Device, Event, Finish, RunStart


def test_a_message_survives_msgpack():
    batch = Batch(
        seq=3,
        rank=1,
        chunks=[Chunk(stream="host", packed=b"x")],
        events=[Event(kind="oom", data={"a": [1]})],
    )
    assert decode(encode(batch), Batch) == batch


def test_the_same_message_gives_the_same_bytes():
    start = {
        "run_id": "r",
        "config": {"b": 1, "a": 2},
        "devices": [Device(id="host", kind="host", name="h")],
    }
    assert encode(RunStart(**start)) == encode(RunStart(**start))


def test_json_is_the_same_message():
    assert decode(b'{"status": "oom", "step": 12}', Finish, JSON) == Finish(status="oom", step=12)


def test_fields_of_a_newer_agent_are_ignored():
    assert decode(b'{"seq": 1, "brand_new": true}', Batch, JSON) == Batch(seq=1)


@pytest.mark.parametrize(
    ("body", "kind", "field"),
    [
        (b'{"seq": -1}', Batch, "seq"),
        (b'{"seq": 1, "chunks": [{"stream": 5}]}', Batch, "chunks[0].stream"),
        (b'{"run_id": "../etc"}', RunStart, "run_id"),
        (b'{"status": "great"}', Finish, "status"),
        (b'{"status": "oom", "step": 1.5}', Finish, "step"),
        (b"[]", Batch, None),
        (b"{", Batch, None),
        (b"\xff\xfe", Batch, None),
    ],
)
def test_it_names_the_field_at_fault(body, kind, field):
    with pytest.raises(WireError) as caught:
        decode(body, kind, JSON)
    assert caught.value.field == field
