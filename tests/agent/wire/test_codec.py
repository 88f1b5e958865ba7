"""Messages are validated on arrival, and errors name the invalid field."""

from __future__ import annotations

import pytest

from memagent.errors import WireError
from memagent.wire.codec import JSON, decode, encode, to_builtins
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


def test_a_malformed_body_is_a_wire_error_that_names_its_format():
    with pytest.raises(WireError, match="the body isn't valid application/msgpack"):
        decode(b"\xc1", Batch)
    with pytest.raises(WireError, match="the body isn't valid application/json"):
        decode(b"{", Batch, JSON)


def test_an_error_says_what_was_expected_in_lower_case():
    with pytest.raises(WireError, match=r"^seq: expected `int`, got `str`$"):
        decode(b'{"seq": "1"}', Batch, JSON)
    with pytest.raises(WireError, match=r"^the body: expected `object`, got `array`$"):
        decode(b"[]", Batch, JSON)


def test_characters_that_cannot_be_encoded_become_question_marks():
    data = {"files\udcff": ["a\udcff.py", ("b\udcff", 1.5)], "count": 3, "none": None}
    sent = decode(encode(Event(kind="error", data=data)), Event)
    assert sent == Event(
        kind="error", data={"files?": ["a?.py", ["b?", 1.5]], "count": 3, "none": None}
    )


def test_its_plain_values_are_those_of_its_json():
    batch = Batch(seq=3, events=[Event(kind="oom", step=2)])
    assert to_builtins(batch) == {"seq": 3, "events": [{"kind": "oom", "step": 2}]}
