"""The exact path of an error."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.wire.codec import JSON, MSGPACK
from memagent.wire.messages import Batch
from memagent_server.http.problems import Problem
from memagent_server.ingest.body import MAX_SEARCHED_BYTES, decode_message, locate

FIELD = "chunks[1].columns[...][0]"


def body_of(columns):
    return {
        "seq": 0,
        "chunks": [
            {"stream": "a"},
            {"stream": "b", "columns": columns},
            {"stream": "c", "columns": {"x": ["bad too"]}},
        ],
    }


@pytest.mark.parametrize(
    ("kind", "encode"), [(JSON, msgspec.json.encode), (MSGPACK, msgspec.msgpack.encode)]
)
@given(
    names=st.lists(st.text(min_size=1, max_size=5), unique=True, min_size=1, max_size=12),
    data=st.data(),
)
def test_it_finds_the_one_entry_that_is_wrong(kind, encode, names, data):
    wrong = data.draw(st.sampled_from(names))
    columns = {name: ["x"] if name == wrong else [1] for name in names}
    assert locate(encode(body_of(columns)), Batch, kind, FIELD) == f"chunks[1].columns.{wrong}[0]"


def test_it_names_the_first_of_several():
    body = msgspec.json.encode(body_of({"a": [1], "b": ["x"], "c": ["x"]}))
    assert locate(body, Batch, JSON, FIELD) == "chunks[1].columns.b[0]"


def test_an_exact_path_is_left_alone():
    assert locate(b"{}", Batch, JSON, "seq") is None
    assert locate(b"{}", Batch, JSON, None) is None


def test_keys_that_are_not_text_are_refused_without_a_path():
    body = msgspec.msgpack.encode({"seq": 0, "dropped_samples": {5: 1}})
    with pytest.raises(Problem) as caught:
        decode_message(body, Batch, MSGPACK)
    assert caught.value.status == 422


def test_it_does_not_search_large_bodies():
    columns = {"a": ["x"], "pad": [1] * MAX_SEARCHED_BYTES}
    with pytest.raises(Problem) as caught:
        decode_message(msgspec.json.encode(body_of(columns)), Batch, JSON)
    assert caught.value.field == FIELD
