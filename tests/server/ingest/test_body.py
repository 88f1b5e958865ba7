"""Bodies of posts: the path of an error, and bodies that are too large or incomplete."""

from __future__ import annotations

import gzip
import json
import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.wire.codec import JSON, MSGPACK
from memagent.wire.messages import Batch
from memagent_server.http.problems import Problem
from memagent_server.ingest.body import MAX_SEARCHED_BYTES, MAX_SENT_BYTES, decode_message, locate

BATCHES = "/api/v1/runs/r/batches"
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
def test_it_locates_the_invalid_entry(kind, encode, names, data):
    wrong = data.draw(st.sampled_from(names))
    columns = {name: ["x"] if name == wrong else [1] for name in names}
    assert locate(encode(body_of(columns)), Batch, kind, FIELD) == f"chunks[1].columns.{wrong}[0]"


def test_it_names_the_first_of_several():
    body = msgspec.json.encode(body_of({"a": [1], "b": ["x"], "c": ["x"]}))
    assert locate(body, Batch, JSON, FIELD) == "chunks[1].columns.b[0]"


def test_an_exact_path_is_not_changed():
    assert locate(b"{}", Batch, JSON, "seq") is None
    assert locate(b"{}", Batch, JSON, None) is None


def test_keys_that_are_not_text_are_refused_without_a_path():
    body = msgspec.msgpack.encode({"seq": 0, "dropped_samples": {5: 1}})
    with pytest.raises(Problem) as caught:
        decode_message(body, Batch, MSGPACK)
    assert caught.value.status == 422


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
def test_a_wrong_value_in_a_body_that_is_not_utf8_is_refused_without_a_path(content_type):
    encode = msgspec.json.encode if content_type == JSON else msgspec.msgpack.encode
    body = encode({"dropped_samples": {"a": "x"}, "unknown": "text"}).replace(b"text", b"\xe8xt!")
    with pytest.raises(Problem) as caught:
        decode_message(body, Batch, content_type)
    assert caught.value.status == 422


def test_it_does_not_search_large_bodies():
    columns = {"a": ["x"], "pad": [1] * MAX_SEARCHED_BYTES}
    with pytest.raises(Problem) as caught:
        decode_message(msgspec.json.encode(body_of(columns)), Batch, JSON)
    assert caught.value.field == FIELD


@pytest.fixture
def server(start_server):
    server = start_server("--role", "web")
    assert server.post("/api/v1/runs", {"run_id": "r"}).status == 201
    return server


def raw(server, head, body, *, then_break_off):
    """Return the server's response to raw bytes."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head + b"\r\n\r\n" + body)
        if then_break_off:
            connection.shutdown(socket.SHUT_WR)
        response = b""
        while part := connection.recv(65536):
            response += part
        return response


def test_large_bodies_are_refused_and_the_server_survives(server):
    for body in (bytes(MAX_SENT_BYTES + 1), bytes(4 * MAX_SENT_BYTES)):
        response = server.post(BATCHES, body)
        assert (response.status, response.headers["Content-Type"]) == (
            413,
            "application/problem+json",
        )
    assert server.post(BATCHES, {"seq": 0}).status == 200


def test_a_decompression_bomb_uses_no_memory(server):
    import psutil

    bomb = gzip.compress(bytes(2**30), 9)
    assert len(bomb) < MAX_SENT_BYTES
    response = server.post(BATCHES, bomb, content_encoding="gzip")
    assert (response.status, response.json["status"]) == (413, 413)
    peak = max(
        child.memory_info().rss
        for child in psutil.Process(server.process.pid).children(recursive=True)
    )
    assert peak < 2**29


def test_an_incomplete_body_stores_nothing_and_can_be_retried(server):
    body = json.dumps({"seq": 0, "chunks": [{"stream": "host", "columns": {"step": [1]}}]}).encode()
    head = f"POST {BATCHES} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body) + 1}"
    assert b" 408 " in raw(server, head.encode(), body, then_break_off=True).partition(b"\r\n")[0]
    assert server.get("/api/v1/runs/r").json["streams"] == []
    assert server.post(BATCHES, body, content_type="application/json").json["accepted"] == 1


def test_a_chunked_body_is_read(server):
    lines = (
        f"POST {BATCHES} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        "Transfer-Encoding: chunked",
        "Connection: close",
    )
    head = "\r\n".join(lines)
    response = raw(
        server, head.encode(), b'5\r\n{"seq\r\n5\r\n": 0}\r\n0\r\n\r\n', then_break_off=False
    )
    assert b" 200 " in response.partition(b"\r\n")[0]
