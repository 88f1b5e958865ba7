"""Values at the ends of their types, and of wrong types: they end no page, list or scrape."""

from __future__ import annotations

import time

import msgspec
import pytest
from sqlalchemy import insert, select

from memagent_server.store.models import DroppedRow, NotificationRow
from memagent_server.worker import Worker

HTML = {"Accept": "text/html"}
MAX_COUNT = 2**53 - 1
MAX_INT = 2**62 - 1
ILL_TYPED = ("many", -1.5, 2**63, float("inf"), float("nan"), True, [], ["x", [1]], {"a": []})
"""What an agent can send in free-form data, as MessagePack."""
OOM_FIELDS = (
    "asked_bytes", "free_bytes", "phase", "devices", "largest_tensors", "last_peaks", "suspects",
    "suspect_search", "components", "error",
)  # fmt: skip
PAGES = ("/", "/alerts", "/alerts/scoreboard", "/failures", "/waste?by=run", "/settings/retention",
         "/compare?runs=largest,smallest", "/compare?runs=smallest,largest",
         "/compare?runs=largest,ill-typed-0")  # fmt: skip
LISTS = ("/metrics", "/api/v1/runs", "/api/v1/alerts", "/api/v1/scoreboard", "/api/v1/waste?days=3650", "/api/v1/notifications",
         "/api/v1/compare?runs=largest,smallest")  # fmt: skip
OF_RUN = ("", "/events", "/series?fields=allocated_bytes", "/series?fields=step_s", "/components", "/export",
          "/suspects", "/snapshots", "/predictions", "/ranks")  # fmt: skip


SHAPES = [{"shape": "x"}, {"shape": ["x", []]}, {"shape": [MAX_INT] * 40}, {"shape": [-1]}]
ILL_TYPED_OOMS = (
    *(dict.fromkeys(OOM_FIELDS, value) for value in ILL_TYPED),
    {"devices": {"host": {"used_bytes": "x", "limit_bytes": [], "components": {"a": "x"}}}},
    {"largest_tensors": [{"shape": 5, "size_bytes": "x", "file": 5}], "suspects": [{"holder": 1}]},
    {"suspects": [{"holder": 1, "step": "x", "bytes_per_step": "x", "line": {}, "file": 1}]},
)
RUNS = ("largest", "smallest", *(f"ill-typed-{index}" for index in range(len(ILL_TYPED_OOMS))))


@pytest.fixture
def server(client):
    """A client of a server with a run for each of RUNS, which ended out of memory."""
    send_run(client, "largest", 1e308, MAX_INT, MAX_COUNT, {"asked_bytes": MAX_INT})
    send_run(client, "smallest", 5e-324, 0, 0, {"asked_bytes": 0})
    for run_id, data in zip(RUNS[2:], ILL_TYPED_OOMS, strict=True):
        send_run(client, run_id, 1.0, 1, 2, data)
    return client


def send_run(client, run_id: str, seconds: float, size: int, count: int, oom: dict) -> None:
    device = {
        "id": "host",
        "kind": "host",
        "name": "host",
        "limit_bytes": size,
        "total_bytes": size,
    }
    start = {"run_id": run_id, "devices": [device], "total_steps": count, "world_size": 2**31 - 1}
    assert client.post("/api/v1/runs", json={**start, "config": {"a": size}}).status_code == 201
    readings = ("allocated_bytes", "peak_allocated_bytes", "reserved_bytes", "limit_bytes", "parameters_bytes",
                "phase_forward_peak_bytes", "ooms_total", "alloc_retries_total", "components", "devices")  # fmt: skip
    steps = [max(0, count - 1), count]
    columns = {
        "step": steps,
        "time_s": [1.0, 2.0],
        "step_s": [seconds] * 2,
        "input_size": [5, 5],
        **{name: [size] * 2 for name in readings},
    }
    scalars = {
        "step": steps,
        "time_s": [1.0, 2.0],
        "loss": [seconds, -seconds],
        "tokens": [size, size],
    }
    chunks = [{"stream": "host", "columns": columns}, {"stream": "scalars", "columns": scalars}]
    events = [
        {"kind": kind, "step": count, "time_s": 0, "data": oom}
        for kind in ("oom", "preflight", "checkpoint", "phase")
    ]
    batch = {"seq": 0, "chunks": chunks, "events": events, "dropped_samples": {"a": count}}
    post(client, f"{run_id}/batches", batch)
    sizes = {"parameters": size, "activations": size}
    prediction = {"method": "formula", "peak_allocated_bytes": size, "peak_reserved_bytes": size, "peak_device_bytes": size,
                  "intervals": {"allocated": [0, size]}, "limit_bytes": size, "components": sizes, "phases": {"forward": size}, "terms": sizes,
                  "assumptions": dict.fromkeys(
            ("inputs", "checkpointing", "attention"), oom.get("asked_bytes", SHAPES)
        ), "advice": [{"change": "x", "saving_bytes": size}]}  # fmt: skip
    post(client, f"{run_id}/predictions", prediction)
    stack = {"frames": ["f (a.py:1)"], "size_bytes": size, "blocks": count}
    suspect = {
        "kind": "list",
        "holder": "x",
        "file": "a.py",
        "line": count,
        "bytes_per_step": min(seconds, 2.0**62),
    }
    snapshot = {"seq": 0, "device": "host", "step": count, "method": "census", "suspects": [suspect], "stacks": [stack] * 3,
                "tensors": [{"size_bytes": "many", "shape": 5}, {"size_bytes": size}]}  # fmt: skip
    assert client.post(f"/api/v1/runs/{run_id}/snapshots", json=snapshot).status_code == 201
    assert (
        client.post(
            f"/api/v1/runs/{run_id}/finish", json={"status": "oom", "step": count}
        ).status_code
        == 200
    )


def post(client, path: str, message: dict) -> None:
    """Post MessagePack, which has infinity and NaN."""
    body = msgspec.msgpack.encode(message)
    answer = client.post(f"/api/v1/runs/{path}", data=body, content_type="application/x-msgpack")
    assert answer.status_code in (200, 201), answer.data


def test_no_value_of_an_agent_ends_a_page_a_list_or_a_scrape(server):
    paths = [(path, HTML) for path in (*PAGES, *(f"/runs/{run_id}" for run_id in RUNS))]
    paths += [(path, {}) for path in LISTS]
    paths += [(f"/api/v1/runs/{run_id}{part}", {}) for run_id in RUNS[:3] for part in OF_RUN]
    failed = {}
    for path, headers in paths:
        answer = server.get(path, headers=headers)
        if answer.status_code != 200 or not answer.data:
            failed[path] = answer.status_code
    assert failed == {}


def test_no_value_of_an_agent_ends_a_notification(app, server, make_settings):
    database = app.extensions["memagent"].database
    now = time.time()
    settings = make_settings(database.url, webhook_url="http://127.0.0.1:9/x")
    worker = Worker(database, settings, lambda: now)
    worker.evaluate()
    for _ in RUNS:
        worker.send()
    with database.read() as session:
        errors = list(session.scalars(select(NotificationRow.last_error)))
    # the message was built, and only its channel is out of reach
    assert len(errors) == len(RUNS) and all("MEMAGENT_ALLOW_LOCAL" in error for error in errors)


def test_counts_are_integers_that_every_reader_represents_exactly(client):
    assert client.post("/api/v1/runs", json={"run_id": "r"}).status_code == 201
    for count, status in ((2**53 - 1, 200), (2**53, 422), (2**63, 422), (-1, 422), (1.5, 422)):
        batch = {"seq": 0, "dropped_samples": {"a": count}}
        answer = client.post("/api/v1/runs/r/batches", json=batch)
        assert answer.status_code == status, count


def test_stored_counts_beyond_the_bound_do_not_overflow_a_sum(app, client):
    """Rows of an earlier version: their sum exceeds 63 bits."""
    assert client.post("/api/v1/runs", json={"run_id": "r"}).status_code == 201
    rows = [
        {"run_id": "r", "rank": rank, "attempt": 0, "reason": "a", "count": MAX_INT}
        for rank in range(3)
    ]
    with app.extensions["memagent"].database.write() as session:
        session.execute(insert(DroppedRow), rows)
    assert (
        b'memagent_dropped_samples_total{reason="a"} 1.3835058055282164e+19'
        in client.get("/metrics").data
    )
    assert client.get("/api/v1/runs/r").get_json()["dropped_samples"]["a"] == 3 * 2**62
    assert client.get("/runs/r", headers=HTML).status_code == 200


@pytest.mark.parametrize("rate", [float("inf"), float("nan"), 1e308, 2.0**62])
def test_a_suspect_whose_rate_exceeds_all_memory_is_refused(client, rate):
    assert client.post("/api/v1/runs", json={"run_id": "r"}).status_code == 201
    suspect = {"kind": "list", "holder": "x", "file": "a.py", "bytes_per_step": rate}
    body = msgspec.msgpack.encode({"device": "host", "method": "census", "suspects": [suspect]})
    answer = client.post(
        "/api/v1/runs/r/snapshots", data=body, content_type="application/x-msgpack"
    )
    assert answer.status_code == (201 if rate == 2.0**62 else 422)
    assert client.get("/runs/r", headers=HTML).status_code == 200
