"""Valid posts of agents, and the refusal of posts while writing falls behind."""

from __future__ import annotations

import gzip
import zlib
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import zstandard

from memagent.wire.codec import encode
from memagent.wire.columns import pack
from memagent.wire.messages import Batch, Chunk, RunStart
from memagent_server.store.group_commit import GroupWriter
from tests.waiting import wait_until

MSGPACK = "application/msgpack"
BATCHES = "/api/v1/runs/r/batches"


@pytest.fixture
def started(client):
    client.post("/api/v1/runs", json={"run_id": "r"})
    return client


def test_a_run_is_created_then_resumed(client):
    first = client.post("/api/v1/runs", json={"run_id": "k3v9"})
    assert (first.status_code, first.get_json()) == (
        201,
        {
            "run_id": "k3v9",
            "url": "http://127.0.0.1:8420/runs/k3v9",
            "next_seq": 0,
            "predecessor": None,
        },
    )
    client.post("/api/v1/runs/k3v9/batches", json={"seq": 0})
    second = client.post("/api/v1/runs", json={"run_id": "k3v9"})
    assert (second.status_code, second.get_json()["next_seq"]) == (200, 1)
    assert (
        client.post("/api/v1/runs", json={"run_id": "k3v9", "attempt": 7}).get_json()["next_seq"]
        == 0
    )


def test_msgpack_and_json_are_equivalent(client):
    message = RunStart(run_id="a", project="nlp", config={"lr": 0.1})
    client.post("/api/v1/runs", data=encode(message), content_type=MSGPACK)
    client.post(
        "/api/v1/runs",
        data=msgspec.json.encode(msgspec.structs.replace(message, run_id="b")),
        content_type="application/json",
    )
    a, b = (client.get(f"/api/v1/runs/{run_id}").get_json() for run_id in "ab")
    assert {key for key in a if a[key] != b[key]} <= {
        "id",
        "name",
        "url",
        "created_at",
        "started_at",
        "last_seen_at",
    }


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", zstandard.ZstdCompressor().compress),
        ("ZSTD", zstandard.ZstdCompressor(write_content_size=False).compress),
        ("identity", bytes),
    ],
)
def test_bodies_may_be_compressed(started, encoding, compress):
    body = encode(Batch(seq=0, chunks=[Chunk(stream="host", packed=pack({"step": [1, 2]}))]))
    response = started.post(
        BATCHES,
        data=compress(body),
        headers={"Content-Type": MSGPACK, "Content-Encoding": encoding},
    )
    assert (response.status_code, response.get_json()["accepted"]) == (200, 2)


def test_a_batch_is_acknowledged_with_the_next_seq(started):
    responses = [
        started.post(
            BATCHES,
            json={
                "seq": seq,
                "chunks": [{"stream": "host", "columns": {"step": [seq], "allocated_bytes": [1]}}],
            },
        ).get_json()
        for seq in (0, 2, 1, 1)
    ]
    # by the load of this process
    assert all(1.0 <= response.pop("batch_every_s") <= 30.0 for response in responses)
    assert responses == [
        {"accepted": 1, "next_seq": next_seq, "risk": None, "commands": []}
        for next_seq in (1, 1, 3, 3)
    ]


def test_unknown_fields_of_a_newer_agent_are_ignored(started):
    columns = {"step": [1], "new_reading_bytes": [5]}
    response = started.post(
        BATCHES,
        json={"seq": 0, "color": "blue", "chunks": [{"stream": "host", "columns": columns}]},
    )
    assert response.status_code == 200
    assert started.get("/api/v1/runs/r/series?fields=new_reading_bytes").get_json()["series"][
        "new_reading_bytes"
    ]["last"] == [5]


def test_predictions_and_the_end_are_stored(started):
    prediction = {
        "method": "formula",
        "peak_allocated_bytes": 10,
        "components": {"parameters": 4},
        "assumptions": {"dtype": "float32"},
    }
    response = started.post("/api/v1/runs/r/predictions", json=prediction)
    assert (response.status_code, set(response.get_json())) == (201, {"id"})
    response = started.post(
        "/api/v1/runs/r/finish", json={"status": "oom", "error": "MemoryError: x", "step": 9}
    )
    assert (response.status_code, response.get_json()) == (200, {"run_id": "r", "status": "oom"})
    assert started.get("/api/v1/runs/r").get_json()["error"] == "MemoryError: x"


def test_a_batch_that_cannot_be_written_soon_is_refused(sqlite_app, sqlite_database):
    client = sqlite_app.test_client()
    client.post("/api/v1/runs", json={"run_id": "r"})
    sqlite_database._group_writer = writer = GroupWriter(sqlite_database._begin, max_wait_s=0.05)
    with ThreadPoolExecutor(1) as pool:
        with sqlite_database.write():  # holds the write lock
            first = pool.submit(sqlite_app.test_client().post, BATCHES, json=batch(0))
            wait_until(lambda: writer._has_leader and not writer._waiting)
            refused = client.post(BATCHES, json=batch(1))
        assert first.result().status_code == 200
    assert (refused.status_code, refused.mimetype) == (503, "application/problem+json")
    assert int(refused.headers["Retry-After"]) >= 1
    assert client.get("/api/v1/runs/r").get_json()["streams"][0]["samples"] == 1
    again = client.post(BATCHES, json=batch(1))
    assert (again.status_code, again.get_json()["next_seq"]) == (200, 2)


def batch(seq):
    return {"seq": seq, "chunks": [{"stream": "host", "columns": {"step": [seq]}}]}
