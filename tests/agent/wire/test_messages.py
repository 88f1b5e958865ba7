"""The smallest and largest values that messages admit, and what an empty one contains."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from memagent.errors import WireError
from memagent.wire import messages
from memagent.wire.codec import decode, encode, to_builtins
from memagent.wire.messages import (
    AdviceItem,
    Batch,
    Device,
    Event,
    Finish,
    PredictionMessage,
    Risk,
    RunStart,
    SnapshotMessage,
    Stack,
    Suspect,
)

DEVICE = {"id": "host", "kind": "host", "name": "h"}
REQUIRED: dict[type, dict[str, Any]] = {
    AdviceItem: {"change": "c", "saving_bytes": 0},
    Batch: {"seq": 0},
    Device: DEVICE,
    Event: {"kind": "oom"},
    Finish: {"status": "oom"},
    PredictionMessage: {"method": "trace", "peak_allocated_bytes": 0},
    Risk: {"level": "ok"},
    RunStart: {"run_id": "r"},
    SnapshotMessage: {"method": "census"},
    Stack: {"frames": [], "size_bytes": 0},
    Suspect: {"kind": "list", "holder": "x"},
}
BYTES = 2**62
COUNT, RANK = 2**53, 2**31
LIMITS = [  # the message, a field, its least and greatest value, and what a step beyond them is
    (Batch, "seq", 0, COUNT - 1, 1),
    (Batch, "rank", 0, RANK - 1, 1),
    (Batch, "attempt", 0, COUNT - 1, 1),
    (Device, "index", 0, RANK - 1, 1),
    (Device, "total_bytes", 0, BYTES - 1, 1),
    (RunStart, "world_size", 1, RANK - 1, 1),
    (RunStart, "started_at", 0.0, 999_999_999_999.0, 1.0),
    (RunStart, "total_steps", 0, COUNT - 1, 1),
    (Risk, "oom_probability", 0.0, 1.0, 0.001),
    (AdviceItem, "saving_bytes", 1 - BYTES, BYTES - 1, 1),
    (Suspect, "bytes_per_step", -(2.0**62), 2.0**62, 2.0**12),
    (Suspect, "confidence", 0.0, 1.0, 0.001),
]
LENGTHS = [  # the message, a field, an item and the number of them that fits
    (RunStart, "name", "x", 200),
    (Device, "limit_source", "x", 200),
    (Suspect, "holder", "x", 20_000),
    (RunStart, "tags", ["t"], 100),
    (RunStart, "devices", [DEVICE], 64),
    (Batch, "chunks", [{"stream": "host"}], 256),
    (Batch, "events", [{"kind": "oom"}], 1_000),
    (PredictionMessage, "advice", [{"change": "c", "saving_bytes": 0}], 50),
    (Stack, "frames", ["f"], 256),
    (SnapshotMessage, "suspects", [REQUIRED[Suspect]], 50),
    (SnapshotMessage, "stacks", [REQUIRED[Stack]], 20_000),
    (SnapshotMessage, "tensors", [{}], 1_000),
    (SnapshotMessage, "notes", ["n"], 50),
    (SnapshotMessage, "viewer", b"\0", 4 * 1024 * 1024),
]


def with_field(kind: type, field: str, value: object) -> object:
    return decode(msgspec.msgpack.encode({**REQUIRED[kind], field: value}), kind)


@pytest.mark.parametrize(("kind", "field", "least", "most", "step"), LIMITS)
def test_numbers_have_limits(kind, field, least, most, step):
    assert getattr(with_field(kind, field, least), field) == least
    assert getattr(with_field(kind, field, most), field) == most
    for beyond in (least - step, most + step):
        with pytest.raises(WireError, match=field):
            with_field(kind, field, beyond)


@pytest.mark.parametrize(("kind", "field", "item", "most"), LENGTHS)
def test_texts_and_lists_have_a_greatest_length(kind, field, item, most):
    assert len(getattr(with_field(kind, field, item * most), field)) == most
    with pytest.raises(WireError, match=field):
        with_field(kind, field, item * (most + 1))


def test_a_label_is_not_empty():
    with pytest.raises(WireError, match="project"):
        with_field(RunStart, "project", "")


def test_an_identifier_has_up_to_64_characters():
    assert with_field(RunStart, "run_id", "a" * 64).run_id == "a" * 64
    for invalid in ("", "a" * 65, "-a", "a/b", "a\n"):
        with pytest.raises(WireError, match="run_id"):
            with_field(RunStart, "run_id", invalid)


@pytest.mark.parametrize("kind", REQUIRED)
def test_missing_fields_are_zero_empty_or_unknown(kind):
    message = decode(msgspec.msgpack.encode(REQUIRED[kind]), kind)
    defaults = {
        name: value for name, value in fields_of(message).items() if name not in REQUIRED[kind]
    }
    named = {"project": "default", "device": "host", "world_size": 1, "blocks": 1}
    for name, value in defaults.items():
        assert value == named[name] if name in named else not value, name


def fields_of(message: Any) -> dict[str, Any]:
    """Return all fields, the missing ones with their defaults."""
    return {name: getattr(message, name) for name in message.__struct_fields__}


@pytest.mark.parametrize("kind", REQUIRED)
def test_missing_fields_take_no_bytes(kind):
    message = kind(**REQUIRED[kind])
    assert to_builtins(message) == REQUIRED[kind]
    # of a type with more than 15 fields, the header is two bytes longer
    assert len(encode(message)) <= len(msgspec.msgpack.encode(REQUIRED[kind])) + 2
    assert msgspec.msgpack.decode(encode(message)) == REQUIRED[kind]


@pytest.mark.parametrize("kind", REQUIRED)
def test_fields_are_named(kind):
    with pytest.raises(TypeError, match="positional"):
        kind(*REQUIRED[kind].values())


@pytest.mark.parametrize(
    "kind", [kind for kind in REQUIRED if kind not in (RunStart, Event, Batch, Finish)]
)
def test_shared_messages_are_immutable(kind):
    message = kind(**REQUIRED[kind])
    field = message.__struct_fields__[0]
    with pytest.raises(AttributeError, match="immutable"):
        setattr(message, field, getattr(message, field))


def test_a_reply_is_complete_and_immutable():
    reply = messages.BatchReply(accepted=1, next_seq=2)
    assert to_builtins(reply) == {
        "accepted": 1, "next_seq": 2, "risk": None, "commands": [], "batch_every_s": 1.0,
    }  # fmt: skip
    command = messages.Command(kind="diagnose")
    assert to_builtins(command) == {"kind": "diagnose", "data": {}}
    for message, field in ((reply, "accepted"), (command, "kind")):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(message, field, None)
    for kind in (messages.BatchReply, messages.Command):
        with pytest.raises(TypeError, match="positional"):
            kind("diagnose", 2)


def test_a_suspect_says_where_it_is():
    suspect = Suspect(kind="list", holder="history", file="train.py", line=42)
    assert suspect.location == "train.py:42"
    assert suspect.to_dict() == {
        "kind": "list", "holder": "history", "file": "train.py", "line": 42, "function": None,
        "bytes_per_step": None, "confidence": 0.0, "fix": "", "source": [], "source_first_line": 0,
    }  # fmt: skip
