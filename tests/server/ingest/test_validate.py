"""Bad input gets a 4xx problem+json that names the field, and nothing is stored."""

from __future__ import annotations

import gzip
import json
import shutil
import zlib

import msgspec
import pytest
import zstandard
from sqlalchemy import func, literal, select, union_all

from memagent.wire.columns import pack
from memagent_server.app import create_app
from memagent_server.ingest.body import MAX_BODY_BYTES, MAX_SENT_BYTES
from memagent_server.store.engine import Database
from memagent_server.store.models import Base

MSGPACK = {"Content-Type": "application/msgpack"}
JSON = {"Content-Type": "application/json"}
BATCHES = "/api/v1/runs/r/batches"
NAN, INFINITY = float("nan"), float("inf")


@pytest.fixture(scope="module")
def shared_database(tmp_path_factory, sqlite_template):
    """One database for all tests of refusals: each checks that nothing was stored."""
    path = tmp_path_factory.mktemp("validate") / "memagent.db"
    shutil.copy(sqlite_template, path)
    database = Database(f"sqlite:///{path}")
    yield database
    database.close()


@pytest.fixture(scope="module")
def shared_client(shared_database, make_settings):
    client = create_app(make_settings(shared_database.url), shared_database).test_client()
    assert client.post("/api/v1/runs", json={"run_id": "r"}).status_code == 201
    return client


@pytest.fixture
def contents(shared_database):
    """Return the number of rows of each table."""
    tables = Base.metadata.sorted_tables
    query = union_all(*(select(literal(t.name), func.count()).select_from(t) for t in tables))

    def contents():
        with shared_database.read() as session:
            return dict(session.execute(query).all())

    return contents


@pytest.fixture
def refused(shared_client, contents):
    """Post to a route, check the refusal and that nothing was stored, and return the problem."""

    def refused(status, body, headers=MSGPACK, path=BATCHES):
        before = contents()
        response = shared_client.post(path, data=body, headers=headers)
        assert response.status_code == status, response.text
        assert response.mimetype == "application/problem+json"
        problem = response.get_json(force=True)
        assert problem["status"] == status
        assert problem["title"]
        assert problem["detail"]
        assert contents() == before
        return problem

    return refused


def batch_with(columns, stream="host"):
    return {
        "seq": 0,
        "chunks": [
            {"stream": "host", "columns": {"step": [1]}},
            {"stream": stream, "columns": columns},
        ],
    }


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"step": [1, 2], "allocated_bytes": [5, -5]}, "allocated_bytes"),
        ({"step": [1], "ooms_total": [-1]}, "ooms_total"),
        ({"step": [1], "anything_new_bytes": [-1]}, "anything_new_bytes"),
        ({"step": [1], "step_s": [NAN]}, "step_s"),
        ({"step": [1], "time_s": [INFINITY]}, "time_s"),
        ({"step": [1], "allocated_bytes": [1.5]}, "allocated_bytes"),
        ({"step": [1], "allocated_bytes": [NAN]}, "allocated_bytes"),
        ({"step": [1], "allocated_bytes": [2**62]}, "allocated_bytes"),
        ({"step": [2, 1]}, "step"),
        ({"step": [-1]}, "step"),
        ({"step": [1, None]}, "step"),
        ({"step": [0.5]}, "step"),
        ({"allocated_bytes": [1]}, "step"),
        ({"step": [1], "allocated_bytes": [1, 2]}, "allocated_bytes"),
        ({"step": [1], "": [1.0]}, ""),
        ({"step": [1], "\x00": [1.0]}, "\x00"),
    ],
)
@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_bad_values_are_named_by_chunk_and_column(refused, columns, field, encoding):
    body = batch_with(columns)
    problem = refused(
        422,
        *(
            (json.dumps(body), JSON)
            if encoding == "json"
            else (msgspec.msgpack.encode(body), MSGPACK)
        ),
    )
    assert problem["field"] == f"chunks[1].columns.{field}"
    assert problem["detail"].startswith(problem["field"])


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
@pytest.mark.parametrize("value", ["x", True, [1], {}])
def test_values_of_the_wrong_type_are_named_by_chunk_column_and_row(refused, value, encoding):
    body = batch_with({"step": [1, 2], "train/loss": [0.5, 0.6], "reserved_bytes": [1, value]})
    problem = refused(
        422,
        *(
            (json.dumps(body), JSON)
            if encoding == "json"
            else (msgspec.msgpack.encode(body), MSGPACK)
        ),
    )
    assert problem["field"] == "chunks[1].columns.reserved_bytes[1]"


def test_nan_of_pythons_json_is_accepted_in_scalars(sqlite_client):
    sqlite_client.post("/api/v1/runs", json={"run_id": "r"})
    body = {
        "seq": 0,
        "chunks": [{"stream": "scalars", "columns": {"step": [1, 2], "loss": [NAN, INFINITY]}}],
    }
    assert sqlite_client.post(BATCHES, data=json.dumps(body), headers=JSON).status_code == 200
    series = sqlite_client.get("/api/v1/runs/r/series?fields=loss&device=scalars").get_json()
    assert series["series"]["loss"]["last"] == [None, None]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({}, "the body"),
        ({"seq": -1}, "seq"),
        ({"seq": "1"}, "seq"),
        ({"seq": 0, "rank": 2**31}, "rank"),
        ({"seq": 0, "rank": None}, "rank"),
        ({"seq": 0, "attempt": 1.5}, "attempt"),
        ({"seq": 0, "chunks": {}}, "chunks"),
        ({"seq": 0, "chunks": [{"stream": ""}]}, "chunks[0].stream"),
        ({"seq": 0, "chunks": [{"stream": "host"}]}, "chunks[0].columns"),
        ({"seq": 0, "chunks": [{"stream": "host", "columns": {}}]}, "chunks[0].columns"),
        ({"seq": 0, "chunks": [{"stream": "host", "columns": {"step": []}}]}, "chunks[0].columns"),
        (
            {"seq": 0, "chunks": [{"stream": "ho\0st", "columns": {"step": [1]}}]},
            "chunks[0].stream",
        ),
        (
            {"seq": 0, "chunks": [{"stream": "host", "columns": {"step": [1]}, "packed": b"MAC1"}]},
            "chunks[0].columns",
        ),
        ({"seq": 0, "events": [{"kind": "oom"}, {"kind": "no good"}]}, "events[1].kind"),
        ({"seq": 0, "events": [{"kind": "oom", "time_s": NAN}]}, "events[0].time_s"),
        ({"seq": 0, "dropped_samples": {"queue_full": -1}}, "dropped_samples.queue_full"),
        ({"seq": 0, "dropped_samples": {"x" * 65: 1}}, "dropped_samples"),
        ({"seq": 0, "dropped_samples": {f"r{n}": 1 for n in range(101)}}, "dropped_samples"),
    ],
)
def test_bad_batches_are_named_by_field(refused, message, field):
    problem = refused(422, msgspec.msgpack.encode(message))
    assert problem.get("field", "the body") == field


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"run_id": "a b"}, "run_id"),
        ({"run_id": "../x"}, "run_id"),
        ({"run_id": ""}, "run_id"),
        ({"run_id": "x" * 65}, "run_id"),
        ({"run_id": 5}, "run_id"),
        ({"run_id": "x", "project": ""}, "project"),
        ({"run_id": "x", "name": "n" * 201}, "name"),
        ({"run_id": "x", "tags": ["ok", 5]}, "tags[1]"),
        (
            {"run_id": "x", "devices": [{"id": "scalars", "kind": "host", "name": "x"}]},
            "devices[0].id",
        ),
        (
            {"run_id": "x", "devices": [{"id": "GPU", "kind": "toaster", "name": "x"}]},
            "devices[0].kind",
        ),
        (
            {
                "run_id": "x",
                "devices": [{"id": "GPU", "kind": "cuda", "name": "x", "limit_bytes": -1}],
            },
            "devices[0].limit_bytes",
        ),
        ({"run_id": "x", "started_at": NAN}, "started_at"),
        ({"run_id": "x", "started_at": INFINITY}, "started_at"),
        ({"run_id": "x", "world_size": 0}, "world_size"),
        ({"run_id": "x", "total_steps": -1}, "total_steps"),
    ],
)
def test_bad_starts_are_named_by_field(refused, message, field):
    assert refused(422, msgspec.msgpack.encode(message), path="/api/v1/runs")["field"] == field


@pytest.mark.parametrize(
    ("path", "message", "field"),
    [
        ("finish", {"status": "fine"}, "status"),
        ("finish", {"status": "oom", "finished_at": NAN}, "finished_at"),
        ("finish", {"status": "oom", "error": "x" * 20_001}, "error"),
        ("predictions", {"method": "guess", "peak_allocated_bytes": 1}, "method"),
        ("predictions", {"method": "formula", "peak_allocated_bytes": -1}, "peak_allocated_bytes"),
        (
            "predictions",
            {"method": "formula", "peak_allocated_bytes": 1, "components": {"parameters": 1.5}},
            "components.parameters",
        ),
    ],
)
def test_bad_ends_and_predictions_are_named_by_field(refused, path, message, field):
    assert (
        refused(422, msgspec.msgpack.encode(message), path=f"/api/v1/runs/r/{path}")["field"]
        == field
    )


@pytest.mark.parametrize(
    ("path", "message"), [("batches", {"seq": 0}), ("finish", {"status": "oom"})]
)
def test_an_unknown_run_is_not_found(sqlite_client, path, message):
    response = sqlite_client.post(f"/api/v1/runs/nobody/{path}", json=message)
    assert (response.status_code, response.mimetype) == (404, "application/problem+json")
    assert "nobody" in response.get_json(force=True)["detail"]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"", JSON),
        (b"{", JSON),
        (b'{"seq": 0', JSON),
        (b"\xff" * 100, JSON),
        (b"", MSGPACK),
        (b"\xc1", MSGPACK),
        (b"\x81\xa3seq", MSGPACK),
    ],
)
def test_broken_syntax_is_a_bad_request(refused, body, headers):
    refused(400, body, headers)


@pytest.mark.parametrize("headers", [JSON, MSGPACK])
def test_a_body_that_is_not_a_message_is_refused(refused, headers):
    for value in (5, "x", [1], None):
        encode = msgspec.json.encode if headers is JSON else msgspec.msgpack.encode
        refused(422, encode(value), headers)


def test_deep_nesting_is_refused(refused):
    for depth in (40, 100_000):
        body = (
            b'{"seq":0,"events":[{"kind":"x","data":{"a":' + b"[" * depth + b"]" * depth + b"}}]}"
        )
        refused(422 if depth < 1000 else 400, body, JSON)


@pytest.mark.parametrize("cut", [1, 8, 20, 60, -1, -5])
def test_a_truncated_chunk_is_refused(refused, cut):
    packed = pack({"step": list(range(100)), "allocated_bytes": list(range(100))}, codec="zlib")[
        :cut
    ]
    problem = refused(
        422, msgspec.msgpack.encode({"seq": 0, "chunks": [{"stream": "host", "packed": packed}]})
    )
    assert problem["field"] == "chunks[0].packed"


@pytest.mark.parametrize("codec", ["zlib", "zstd"])
def test_a_decompression_bomb_in_a_chunk_is_refused(refused, codec):
    """Its header declares 100 rows, and its payload decompresses to a gigabyte."""
    packed = pack({"step": list(range(100))}, codec=codec)
    head = packed[: 8 + int.from_bytes(packed[4:8], "little")]
    zeros = bytes(2**24)
    if codec == "zlib":
        squeeze = zlib.compressobj(9)
        payload = b"".join(squeeze.compress(zeros) for _ in range(64)) + squeeze.flush()
    else:
        squeeze = zstandard.ZstdCompressor(level=3).compressobj()
        payload = b"".join(squeeze.compress(zeros) for _ in range(64)) + squeeze.flush()
    problem = refused(
        422,
        msgspec.msgpack.encode(
            {"seq": 0, "chunks": [{"stream": "host", "packed": head + payload}]}
        ),
    )
    assert problem["field"] == "chunks[0].packed"


def test_a_large_body_is_refused(refused):
    refused(413, bytes(MAX_SENT_BYTES + 1))


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_a_decompression_bomb_is_refused(refused, encoding):
    compress = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "zstd": zstandard.ZstdCompressor().compress,
    }[encoding]
    refused(413, compress(bytes(MAX_BODY_BYTES + 1)), {**MSGPACK, "Content-Encoding": encoding})


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
@pytest.mark.parametrize("body", [b"not compressed", b""])
def test_broken_compression_is_a_bad_request(refused, encoding, body):
    refused(400, body, {**MSGPACK, "Content-Encoding": encoding})


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_incomplete_compression_is_a_bad_request(refused, encoding):
    compress = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "zstd": zstandard.ZstdCompressor().compress,
    }[encoding]
    whole = compress(
        json.dumps({"seq": 0, "events": [{"kind": "x", "data": {"n": list(range(999))}}]}).encode()
    )
    refused(400, whole[: len(whole) // 2], {**JSON, "Content-Encoding": encoding})


@pytest.mark.parametrize(
    "headers",
    [{"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}],
)
def test_other_content_types_are_refused(refused, headers):
    refused(415, b'{"seq": 0}', headers)


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "compress"])
def test_other_encodings_are_refused(refused, encoding):
    refused(415, b"{}", {**JSON, "Content-Encoding": encoding})


def test_the_same_key_with_other_content_is_a_conflict(shared_client, refused):
    shared_client.post("/api/v1/runs", json={"run_id": "conflict"})
    batches = "/api/v1/runs/conflict/batches"
    assert shared_client.post(batches, json={"seq": 0}).status_code == 200
    other = {"seq": 0, "chunks": [{"stream": "host", "columns": {"step": [1]}}]}
    refused(409, json.dumps(other), JSON, batches)


def test_free_form_parts_are_stored_in_portable_form(client):
    config = {"clip": INFINITY, "nul": "a\0b", "huge": 2**63, "deep": {"x": [NAN]}}
    body = msgspec.msgpack.encode({"run_id": "free", "config": config, "tags": ["a\0b"]})
    assert client.post("/api/v1/runs", data=body, headers=MSGPACK).status_code == 201
    response_body = client.get("/api/v1/runs/free").get_json()
    assert response_body["config"] == {
        "clip": "inf",
        "nul": "a\ufffdb",
        "huge": str(2**63),
        "deep": {"x": ["nan"]},
    }
    assert response_body["tags"] == ["a\ufffdb"]


@pytest.mark.parametrize("at", [0.0, 1e11, 9.9e11])
def test_wrong_clocks_do_not_break_the_pages(client, at):
    client.post("/api/v1/runs", json={"run_id": "clock", "started_at": at})
    columns = {"step": [1], "time_s": [at * 1e200], "allocated_bytes": [1]}
    body = {
        "seq": 0,
        "chunks": [{"stream": "host", "columns": columns}],
        "events": [{"kind": "x", "time_s": at}],
    }
    assert client.post("/api/v1/runs/clock/batches", json=body).status_code == 200
    assert client.get("/api/v1/runs/clock").status_code == 200
    assert client.get("/api/v1/runs/clock/series").status_code == 200


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_a_whole_number_may_be_written_with_a_point(sqlite_client, encoding):
    """JSON does not distinguish 3.0 from 3, and some serializers write 3.0; nothing else is
    rounded.
    """

    def post(path, body):
        data, headers = (
            (json.dumps(body), JSON)
            if encoding == "json"
            else (msgspec.msgpack.encode(body), MSGPACK)
        )
        return sqlite_client.post(f"/api/v1/runs{path}", data=data, headers=headers)

    assert post("", {"run_id": "r", "total_steps": 100.0, "config": {"lr": 0.5}}).status_code == 201
    run = sqlite_client.get("/api/v1/runs/r").get_json()
    assert (run["total_steps"], run["config"]) == (100, {"lr": 0.5})
    response = post("/r/finish", {"status": "completed", "rank": 0.0, "step": 1.5})
    assert (response.status_code, response.get_json(force=True)["field"]) == (422, "step")


def test_a_saving_beyond_64_bits_is_refused(refused):
    advice = [{"change": "x", "saving_bytes": 2**63}]
    body = {"method": "formula", "peak_allocated_bytes": 1, "advice": advice}
    problem = refused(422, msgspec.msgpack.encode(body), MSGPACK, "/api/v1/runs/r/predictions")
    assert problem["field"] == "advice[0].saving_bytes"
