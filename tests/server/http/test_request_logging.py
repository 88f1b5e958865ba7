"""Each request gets an id, a line in the log, and is counted."""

from __future__ import annotations

import logging
import time

import pytest

from memagent_server.metrics import exposition
from memagent_server.observability.logs import FIELDS


@pytest.fixture
def lines(caplog):
    """lines(level): the records of the access log from that level."""
    caplog.set_level(logging.DEBUG, "memagent.access")
    return lambda level=logging.INFO: [
        record
        for record in caplog.records
        if record.name == "memagent.access" and record.levelno >= level
    ]


def test_a_generated_id_is_in_response_and_problem(sqlite_client):
    first, second = sqlite_client.get("/api/v1/runs/none"), sqlite_client.get("/api/v1/runs/none")
    assert first.get_json(force=True)["request_id"] == first.headers["X-Request-ID"]
    assert first.headers["X-Request-ID"] != second.headers["X-Request-ID"]


def test_a_valid_request_id_is_kept(sqlite_client):
    response = sqlite_client.get("/api/v1/runs/none", headers={"X-Request-ID": "proxy-1.a_b"})
    assert (
        response.headers["X-Request-ID"]
        == response.get_json(force=True)["request_id"]
        == "proxy-1.a_b"
    )
    assert (
        "proxy-2"
        in sqlite_client.get(
            "/runs/none", headers={"X-Request-ID": "proxy-2", "Accept": "text/html"}
        ).text
    )


@pytest.mark.parametrize("invalid", ["", "two words", "x" * 65, "<b>", "a\tb", "ü"])
def test_an_invalid_request_id_is_replaced(sqlite_client, invalid):
    new_id = sqlite_client.get("/api/v1/runs", headers={"X-Request-ID": invalid}).headers[
        "X-Request-ID"
    ]
    assert len(new_id) == 16 and new_id != invalid


def test_the_access_log_has_request_token_and_status(sqlite_client, lines):
    sqlite_client.get("/api/v1/runs?q=private", headers={"X-Request-ID": "one"})
    (line,) = lines()
    fields = getattr(line, FIELDS)
    assert line.getMessage() == "GET /api/v1/runs"
    assert (fields["status"], fields["address"], fields["token"]) == (200, "127.0.0.1", "everybody")
    assert fields["sent_bytes"] > 10 and fields["duration_ms"] >= 0


def test_frequent_routes_are_logged_only_on_failure(sqlite_client, lines):
    sqlite_client.post("/api/v1/runs", json={"run_id": "r"})
    before = len(lines())
    assert sqlite_client.post("/api/v1/runs/r/batches", json={"seq": 0}).status_code == 200
    sqlite_client.get("/healthz")
    assert len(lines()) == before and len(lines(logging.DEBUG)) == before + 2
    sqlite_client.post("/api/v1/runs/nowhere/batches", json={"seq": 0})
    assert len(lines()) == before + 1


def test_requests_and_batches_are_counted_by_route_and_not_by_run(sqlite_client):
    for name in ("a", "b"):
        sqlite_client.post("/api/v1/runs", json={"run_id": name})
        chunk = {"stream": "host", "columns": {"step": [1, 2, 3], "allocated_bytes": [1, 2, 3]}}
        response = sqlite_client.post(
            f"/api/v1/runs/{name}/batches", json={"seq": 0, "chunks": [chunk]}
        )
        assert response.get_json()["accepted"] == 3
    sqlite_client.get("/nothing/at/all")
    html = sqlite_client.get("/metrics").text
    route = "/api/v1/runs/<run_id>/batches"
    assert f'memagent_http_requests_total{{method="POST",route="{route}",status="200"}} 2.0' in html
    assert f'memagent_http_request_seconds_count{{route="{route}"}} 2.0' in html
    assert 'memagent_http_requests_total{method="GET",route="none",status="404"} 1.0' in html
    assert (
        "memagent_batch_samples_sum 6.0" in html
        and "memagent_batch_store_seconds_count 2.0" in html
    )
    assert (
        "memagent_batch_interval_seconds_sum 2.0" in html
        and 'memagent_batch_interval_seconds_bucket{le="1.0"} 2.0' in html
    )


def test_counts_are_exposed_by_the_background_thread(sqlite_client, monkeypatch):
    """With many streams, a background thread without an app context builds the exposition."""
    monkeypatch.setattr(exposition, "MAX_LIVE_STREAMS", -1)
    monkeypatch.setattr(exposition, "REFRESH_S", 0.0)
    sqlite_client.get("/metrics")
    sqlite_client.get("/api/v1/runs")
    wanted, until = (
        'memagent_http_requests_total{method="GET",route="/api/v1/runs",status="200"} 1.0',
        time.monotonic() + 10,
    )
    while wanted not in sqlite_client.get("/metrics").text:
        assert time.monotonic() < until, "nobody makes it anew"
        time.sleep(0.02)
