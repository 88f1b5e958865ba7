"""Bodies that would become far more in memory than they are on the wire."""

from __future__ import annotations

import msgspec
import psutil
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from memagent.wire.codec import JSON, MSGPACK
from memagent.wire.columns import pack
from memagent_server.ingest.body import MAX_RATIO
from memagent_server.ingest.message_limits import (
    MAX_JSON_BYTES,
    MAX_VALUES,
    count_json,
    count_msgpack,
)
from memagent_server.ingest.validate import MAX_FREE_BYTES, MAX_FREE_VALUES

RUNS, BATCHES = "/api/v1/runs", "/api/v1/runs/r/batches"

_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.integers(0, 70_000).map(lambda size: "x" * size)
    | st.integers(0, 70_000).map(bytes)
    | st.integers(0, 300).map(lambda size: msgspec.msgpack.Ext(1, bytes(size)))
)
_values = st.recursive(
    _leaves, lambda items: st.lists(items, max_size=20) | st.dictionaries(st.text(), items)
)


@pytest.fixture
def started(sqlite_client):
    sqlite_client.post(RUNS, json={"run_id": "r"})
    return sqlite_client


def values_of(value):
    if isinstance(value, list):
        return 1 + sum(map(values_of, value))
    if isinstance(value, dict):
        return 1 + sum(1 + values_of(item) for item in value.values())
    return 1


@given(_values)
def test_it_counts_the_values_of_msgpack(value):
    assert count_msgpack(msgspec.msgpack.encode(value)) == values_of(value)


@given(
    st.recursive(
        st.none() | st.text(), lambda items: st.lists(items) | st.dictionaries(st.text(), items)
    )
)
def test_json_has_no_more_values_than_it_counts(value):
    assert count_json(msgspec.json.encode(value)) >= values_of(value)


@given(st.binary(max_size=200))
def test_it_counts_damaged_msgpack(body):
    assert count_msgpack(body) >= 1


def test_a_declared_length_is_enough():
    assert count_msgpack(b"\xdd\xff\xff\xff\xff") > MAX_VALUES
    assert count_msgpack(b"\xdf\x7f\xff\xff\xff") > MAX_VALUES


def post(client, path, body, content_type=MSGPACK, **headers):
    return client.post(path, data=body, headers={"Content-Type": content_type, **headers})


@pytest.mark.parametrize(
    "body",
    [
        {"run_id": "x", "config": {"a": [[]] * MAX_VALUES}},
        {"run_id": "x", "environment": {"a": [{}] * MAX_VALUES}},
        {"run_id": "x", "unknown": [None] * MAX_VALUES},
    ],
)
@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
def test_too_many_values_are_refused(started, body, content_type):
    encode = msgspec.json.encode if content_type == JSON else msgspec.msgpack.encode
    answer = post(started, RUNS, encode(body), content_type)
    assert answer.status_code == 413
    assert str(MAX_VALUES) in answer.get_json(force=True)["detail"]


def test_a_bomb_is_refused_by_its_ratio(started):
    plain = msgspec.msgpack.encode({"run_id": "x", "name": "x" * (2 * 2**20)})
    packed = zstandard.ZstdCompressor().compress(plain)
    assert len(plain) > MAX_RATIO * len(packed)
    answer = post(started, RUNS, packed, **{"Content-Encoding": "zstd"})
    assert answer.status_code == 413


def test_json_is_limited_to_what_parses_in_time(started):
    body = b'{"run_id": "x", "config": {"a": [' + b"1.1111111111111111111e-300," * 10
    assert post(started, RUNS, body + b" " * MAX_JSON_BYTES, JSON).status_code == 413


@pytest.mark.parametrize("value", [[[]] * (MAX_FREE_VALUES + 1), ["x" * (MAX_FREE_BYTES + 1)]])
@pytest.mark.parametrize(
    ("path", "make"),
    [
        (RUNS, lambda value: {"run_id": "x", "config": {"a": value}}),
        (RUNS, lambda value: {"run_id": "x", "environment": {"a": value}}),
        (BATCHES, lambda value: {"seq": 0, "events": [{"kind": "x", "data": {"a": value}}]}),
        (
            "/api/v1/runs/r/predictions",
            lambda value: {
                "method": "trace",
                "peak_allocated_bytes": 1,
                "assumptions": {"a": value},
            },
        ),
    ],
)
def test_free_form_parts_have_bounds(started, path, make, value):
    answer = post(started, path, msgspec.msgpack.encode(make(value)))
    assert answer.status_code == 422, answer.text
    assert "too large" in answer.get_json(force=True)["detail"]


def test_the_events_of_a_batch_share_their_bounds(started):
    events = [{"kind": "x", "data": {"a": "x" * (MAX_FREE_BYTES // 10)}} for _ in range(11)]
    answer = post(started, BATCHES, msgspec.msgpack.encode({"seq": 0, "events": events}))
    assert (answer.status_code, answer.get_json(force=True)["field"]) == (422, "events[9].data.a")


def test_the_chunks_of_a_batch_share_their_bounds(started):
    rows = 50_000
    packed = pack({"step": [0] * rows, **{f"c{i}_bytes": [0] * rows for i in range(39)}})
    chunks = [{"stream": f"s{index}", "packed": packed} for index in range(3)]
    answer = post(started, BATCHES, msgspec.msgpack.encode({"seq": 0, "chunks": chunks}))
    assert (answer.status_code, answer.get_json(force=True)["field"]) == (422, "chunks[2]")


def test_columns_are_limited_before_they_are_packed(started):
    columns = {f"c{index}": [1] for index in range(20_000)}
    body = {"seq": 0, "chunks": [{"stream": "host", "columns": columns}]}
    assert post(started, BATCHES, msgspec.msgpack.encode(body)).status_code == 422


@pytest.mark.slow
def test_a_bomb_leaves_a_server_small_and_free(start_server):
    server = start_server("--role", "web")
    plain = msgspec.msgpack.encode({"run_id": "bomb", "config": {"a": [[]] * (16 * 2**20)}})
    bomb = zstandard.ZstdCompressor().compress(plain)
    assert server.post(RUNS, bomb, content_encoding="zstd").status == 413
    assert server.post(RUNS, plain[: 8 * 2**20]).status == 413
    children = psutil.Process(server.process.pid).children(recursive=True)
    assert max(child.memory_info().rss for child in children) < 2**29
    assert server.get("/healthz").status == 200
