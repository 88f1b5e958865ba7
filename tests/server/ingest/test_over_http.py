"""Bad input over a real connection, where a body can also be too long to send or break off."""

from __future__ import annotations

import gzip
import json
import socket

import pytest

from memagent_server.ingest.body import MAX_SENT_BYTES

BATCHES = "/api/v1/runs/r/batches"


@pytest.fixture
def server(start_server):
    server = start_server("--role", "web")
    assert server.post("/api/v1/runs", {"run_id": "r"}).status == 201
    return server


def raw(server, head, body, *, then_break_off):
    """What the server answers to these bytes."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(head + b"\r\n\r\n" + body)
        if then_break_off:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


def test_bodies_that_are_too_large_are_refused_and_the_server_lives(server):
    for body in (bytes(MAX_SENT_BYTES + 1), bytes(4 * MAX_SENT_BYTES)):
        answer = server.post(BATCHES, body)
        assert (answer.status, answer.headers["Content-Type"]) == (413, "application/problem+json")
    assert server.post(BATCHES, {"seq": 0}).status == 200


def test_a_bomb_is_refused_and_costs_no_memory(server):
    import psutil

    bomb = gzip.compress(bytes(2**30), 9)
    assert len(bomb) < MAX_SENT_BYTES
    answer = server.post(BATCHES, bomb, content_encoding="gzip")
    assert (answer.status, answer.json["status"]) == (413, 413)
    peak = max(
        child.memory_info().rss
        for child in psutil.Process(server.process.pid).children(recursive=True)
    )
    assert peak < 2**29


def test_a_body_that_breaks_off_stores_nothing_and_may_be_sent_again(server):
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
    answer = raw(
        server, head.encode(), b'5\r\n{"seq\r\n5\r\n": 0}\r\n0\r\n\r\n', then_break_off=False
    )
    assert b" 200 " in answer.partition(b"\r\n")[0]
