"""Snapshots of the memory's holders, sent by agents on request of the server."""

from __future__ import annotations

import base64
import zlib

import pytest

from memagent_server.ingest.validate import MAX_VIEWER_BYTES
from memagent_server.store.forecasts import add_forecasts
from memagent_server.store.models import StreamRow

SUSPECT = {
    "kind": "graph", "holder": "total_loss: float tensor with 412 graphs", "file": "train.py", "line": 42, "function": "main",
    "bytes_per_step": 5.5e6, "confidence": 0.9, "fix": "Add loss.item().",
    "source": ["for batch in loader:", "    total_loss += loss", "    loss.backward()"], "source_first_line": 41,
}  # fmt: skip
SNAPSHOT = {
    "rank": 0, "seq": 0, "device": "host", "step": 40, "time_s": 100.0, "method": "census", "why": "forecast", "suspects": [SUSPECT],
    "stacks": [{"frames": ["main (train.py:42)"], "size_bytes": 1000, "blocks": 3}],
    "tensors": [{"shape": [2, 3], "dtype": "float32", "size_bytes": 24}],
}  # fmt: skip


@pytest.fixture
def started(client):
    client.post("/api/v1/runs", json={"run_id": "r"})
    return client


def send(client, **changes):
    return client.post("/api/v1/runs/r/snapshots", json={**SNAPSHOT, **changes})


def test_a_snapshot_is_stored_and_listed_without_its_body(started):
    key = send(started).get_json()["id"]
    [listed] = started.get("/api/v1/runs/r/snapshots").get_json()["snapshots"]
    assert (listed["id"], listed["step"], listed["suspects"], listed["has_stacks"]) == (
        key,
        40,
        [SUSPECT],
        True,
    )
    assert "stacks" not in listed
    whole = started.get(f"/api/v1/runs/r/snapshots/{key}").get_json()
    assert (whole["stacks"], whole["tensors"]) == (SNAPSHOT["stacks"], SNAPSHOT["tensors"])


def test_the_same_snapshot_twice_is_one(started):
    assert send(started).get_json() == send(started).get_json()
    assert len(started.get("/api/v1/runs/r/snapshots").get_json()["snapshots"]) == 1


def test_suspects_of_the_newest_snapshots_are_merged_by_line(started):
    old = {**SUSPECT, "line": 7}
    send(started, seq=0, suspects=[old])
    send(
        started,
        seq=1,
        suspects=[{**SUSPECT, "confidence": 0.4}, {**SUSPECT, "line": 50, "confidence": 0.7}],
    )
    started.post("/api/v1/runs", json={"run_id": "r", "rank": 1, "world_size": 2})
    send(started, rank=1)
    response = started.get("/api/v1/runs/r/suspects").get_json()["suspects"]
    assert [(row["line"], row["ranks"]) for row in response] == [(42, [0, 1]), (50, [0])]


def dies(client, **words):
    event = {"kind": "oom", "step": 44, "data": {"phase": "forward", **words}}
    client.post("/api/v1/runs/r/batches", json={"seq": 1, "events": [event]})
    client.post("/api/v1/runs/r/finish", json={"status": "oom", "step": 44})


def test_suspects_of_the_oom_event_are_listed(started):
    without_function = {**SUSPECT, "line": 7, "function": "", "confidence": 0.5}
    dies(started, suspects=[SUSPECT, without_function, {"kind": 3}, "junk"])
    response = started.get("/api/v1/runs/r/suspects").get_json()["suspects"]
    assert [(row["line"], row["ranks"], row["step"], row["snapshot"]) for row in response] == [
        (42, [0], 44, None),
        (7, [0], 44, None),
    ]
    html = started.get("/runs/r").get_data(as_text=True)
    assert "train.py:42" in html and "Leak suspects" in html


def test_a_suspect_of_a_snapshot_is_not_repeated(started):
    key = send(started).get_json()["id"]
    dies(started, suspects=[SUSPECT])
    [response] = started.get("/api/v1/runs/r/suspects").get_json()["suspects"]
    assert (response["snapshot"], response["ranks"]) == (key, [0])


@pytest.mark.parametrize(
    ("search", "sentence"),
    [
        (
            {"first_step": 5, "step": 26},
            "No suspect was found: the leak diagnosis covered steps 5 to 26.",
        ),
        (
            {"why_not": "no growth was suspected"},
            "No leak diagnosis was run: no growth was suspected.",
        ),
    ],
)
def test_the_page_of_an_oom_run_shows_the_result_of_the_diagnosis(started, search, sentence):
    dies(started, suspects=[], suspect_search=search)
    assert sentence in started.get("/runs/r").get_data(as_text=True)


def test_a_run_without_a_diagnosis_has_no_suspects(started):
    assert started.get("/api/v1/runs/r/suspects").get_json() == {"run_id": "r", "suspects": []}
    assert started.get("/api/v1/runs/nobody/suspects").status_code == 404
    assert started.post("/api/v1/runs/nobody/snapshots", json=SNAPSHOT).status_code == 404


@pytest.mark.parametrize("key", ["99", str(2**62), "0"])
def test_an_unknown_snapshot_is_not_found(started, key):
    assert started.get(f"/api/v1/runs/r/snapshots/{key}").status_code == 404


def test_another_runs_snapshot_is_not_found(started):
    key = send(started).get_json()["id"]
    started.post("/api/v1/runs", json={"run_id": "s"})
    assert started.get(f"/api/v1/runs/s/snapshots/{key}").status_code == 404


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"method": "magic"}, "method"),
        ({"suspects": [{**SUSPECT, "confidence": 2}]}, "suspects[0].confidence"),
        ({"stacks": [{"frames": ["x"], "size_bytes": -1}]}, "stacks[0].size_bytes"),
        ({"suspects": [{"kind": "graph"}]}, "suspects[0]"),
    ],
)
def test_a_malformed_snapshot_is_refused_with_its_field(started, change, field):
    response = send(started, **change)
    assert (response.status_code, response.get_json(force=True)["field"]) == (422, field)


def test_a_viewers_page_is_a_sandboxed_download(started):
    page = b"<html><script>add_local_files()</script></html>" * 100_000
    key = send(started, viewer=base64.b64encode(zlib.compress(page)).decode()).get_json()["id"]
    [listed] = started.get("/api/v1/runs/r/snapshots").get_json()["snapshots"]
    assert listed["has_viewer"] and "viewer" not in listed
    response = started.get(f"/api/v1/runs/r/snapshots/{key}/viewer")
    assert (response.mimetype, response.data) == ("text/html", page)
    assert response.headers["Content-Disposition"] == 'attachment; filename="r-step40-rank0.html"'
    assert response.headers["Content-Security-Policy"].startswith("sandbox;")
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert f'href="/api/v1/runs/r/snapshots/{key}/viewer" download' in started.get(
        "/runs/r"
    ).get_data(as_text=True)


def test_a_snapshot_without_a_viewers_page_returns_404(started):
    key = send(started).get_json()["id"]
    assert [
        started.get(f"/api/v1/runs/r/snapshots/{k}/viewer").status_code for k in (key, 99, 2**62)
    ] == [404] * 3
    assert "/viewer" not in started.get("/runs/r").get_data(as_text=True)


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (b"<html>", "not valid zlib"),
        (zlib.compress(b"<html>")[:-3], "incomplete"),
        (zlib.compress(bytes(MAX_VIEWER_BYTES + 1)), "bytes uncompressed"),
    ],
)
def test_an_invalid_viewers_page_is_refused(sqlite_client, packed, why):
    sqlite_client.post("/api/v1/runs", json={"run_id": "r"})
    response = send(sqlite_client, viewer=base64.b64encode(packed).decode())
    problem = response.get_json(force=True)
    assert (response.status_code, problem["field"]) == (422, "viewer") and why in problem["detail"]


def forecast(app, cause, level="warning"):
    """Store a forecast for the run's host stream, like the worker."""
    from memagent.forecast import Forecast

    with app.extensions["memagent"].database.write() as session:
        stream = session.query(StreamRow).filter_by(run_id="r").one()
        response = Forecast(level=level, step=2, oom_probability=0.9, cause=cause)
        add_forecasts(session, [(stream.run_id, stream.id, response)], 1.0)


def batch(client, seq):
    body = {
        "seq": seq,
        "chunks": [{"stream": "host", "columns": {"step": [seq], "allocated_bytes": [1]}}],
    }
    return client.post("/api/v1/runs/r/batches", json=body).get_json()["commands"]


@pytest.mark.parametrize(
    ("cause", "asks"), [("leak", True), ("host_memory", True), ("fragmentation", False)]
)
def test_a_leaking_rank_is_asked_for_a_diagnosis_until_it_sends_one(app, started, cause, asks):
    assert batch(started, 1) == []
    forecast(app, cause)
    commands = batch(started, 2)
    assert [command["kind"] for command in commands] == ["snapshot"] * asks
    send(started)
    assert batch(started, 3) == []
