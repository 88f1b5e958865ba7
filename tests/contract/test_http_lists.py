"""Lists are paged to their end, reduced to fields and cached; invalid parameters are refused."""

from __future__ import annotations

from itertools import product

import pytest
from urllib3.util import parse_url

from memagent_server.store.cuda_contexts import store_contexts
from memagent_server.store.models import ForecastRow, RankRow, RunRow, StreamRow
from memagent_server.store.runs import lock_run

LISTS = {
    "/api/v1/runs": "runs",
    "/api/v1/alerts": "alerts",
    "/api/v1/notifications": "notifications",
    "/api/v1/contexts": "contexts",
    "/api/v1/rehearsals": "rehearsals",
    "/api/v1/changes": "changes",
    "/api/v1/runs/a/events": "events",
    "/api/v1/runs/a/predictions": "predictions",
    "/api/v1/runs/a/snapshots": "snapshots",
    "/api/v1/runs/a/forecast": "history",
}
POLLED = [
    *LISTS,
    "/api/v1/runs/a",
    "/api/v1/runs/a/series",
    "/api/v1/runs/a/components",
    "/api/v1/runs/a/suspects",
    "/api/v1/rules",
    "/api/v1/column-rules",
    "/api/v1/routes",
    "/api/v1/schedules",
    "/api/v1/scoreboard",
    "/api/v1/waste",
    "/api/v1/groups?by=project",
    "/api/v1/views",
    "/api/v1/compare?runs=a,b",
    "/openapi.json",
]


@pytest.fixture
def client(sqlite_app, sqlite_client, fill):
    """A client of a server whose every list has three entries."""
    for run_id in "abc":
        fill(run_id, "vision", f"marker-{run_id}")
    for number in (2, 3):
        post = {
            "batches": {
                "seq": number,
                "events": [{"kind": "oom" if number == 3 else "xid", "step": number}],
            },
            "predictions": {"method": "formula", "peak_allocated_bytes": number},
            "snapshots": {"method": "census", "seq": number},
        }
        for verb, body in post.items():
            assert sqlite_client.post(f"/api/v1/runs/a/{verb}", json=body).status_code in (200, 201)
    for number in range(3):
        rehearsal = {
            "fingerprint": f"f{number}",
            "script": "train.py",
            "gpu": "NVIDIA L4",
            "fits": True,
            "prediction": {"method": "rehearsal", "peak_allocated_bytes": number},
        }
        assert sqlite_client.post("/api/v1/rehearsals", json=rehearsal).status_code == 201
        assert sqlite_client.patch("/api/v1/runs/a", json={"notes": str(number)}).status_code == 200
    with sqlite_app.extensions["memagent"].database.write() as session:
        for at, run_id in enumerate("abc"):
            run, stream = (
                lock_run(session, run_id),
                session.query(StreamRow).filter_by(run_id=run_id, kind="cuda").one(),
            )
            stream.latest = {**stream.latest, "context_bytes": 5}
            store_contexts(
                session, run, session.get_one(RankRow, (run_id, 0, 0)), 1.0 if at < 2 else 2.0
            )
            of_a = session.query(StreamRow).filter_by(run_id="a", kind="cuda").one()
            session.add(
                ForecastRow(
                    run_id="a", stream_id=of_a.id, at=at, step=at, level="ok", oom_probability=0.1
                )
            )
        assert session.query(RunRow).count() == 3
    return sqlite_client


def test_a_list_is_read_to_its_end_page_by_page(client):
    for path, name in LISTS.items():
        read_to_its_end(client, path, name)


def read_to_its_end(client, path, name):
    whole = client.get(path).get_json()
    assert len(whole[name]) == 3 and whole["next_cursor"] is None
    pages, response = [], client.get(path, query_string={"limit": 1})
    while True:
        pages.append(response.get_json()[name])
        if response.get_json()["next_cursor"] is None:
            break
        link = response.headers["Link"]
        assert link.startswith("<http://localhost/api/v1/") and link.endswith('>; rel="next"')
        response = client.get(parse_url(link[1:].partition(">")[0]).request_uri)
    assert "Link" not in response.headers
    assert [len(page) for page in pages] == [1, 1, 1]
    in_order = pages[::-1] if name == "history" else pages
    assert [row for page in in_order for row in page] == whole[name]


def test_an_invalid_cursor_is_refused_with_advice(client):
    for path, cursor in product(LISTS, ("x", "-1", "1.5", "٣", "9" * 30, "W10", "WzFd")):
        response = client.get(path, query_string={"cursor": cursor})
        problem = response.get_json(force=True)
        assert (response.status_code, response.mimetype, problem["field"]) == (
            422,
            "application/problem+json",
            "cursor",
        ), path
        assert "leave it out for the first page" in problem["detail"], (path, cursor)


def test_events_are_filtered_by_kind(client):
    events = client.get("/api/v1/runs/a/events?kind=oom").get_json()["events"]
    assert [(event["kind"], event["step"]) for event in events] == [("oom", 3)]


def test_an_unchanged_response_is_not_sent_again(client):
    for path in POLLED:
        first = client.get(path)
        assert first.headers["Cache-Control"] == "private, no-cache", path
        again = client.get(path, headers={"If-None-Match": first.headers["ETag"]})
        assert (again.status_code, again.data, again.headers["ETag"]) == (
            304,
            b"",
            first.headers["ETag"],
        ), path
        other = client.get(path, headers={"If-None-Match": 'W/"another"'})
        assert (other.status_code, other.data) == (200, first.data), path


def test_a_changed_response_is_sent(client):
    before = client.get("/api/v1/runs/a/series").headers["ETag"]
    batch = {
        "seq": 9,
        "chunks": [{"stream": "GPU-marker-a", "columns": {"step": [4], "allocated_bytes": [1]}}],
    }
    assert client.post("/api/v1/runs/a/batches", json=batch).status_code == 200
    after = client.get("/api/v1/runs/a/series", headers={"If-None-Match": before})
    assert after.status_code == 200 and after.headers["ETag"] != before


def test_rows_hold_the_requested_fields_and_the_id(client):
    for name, fields in (
        ("runs", "status, name"),
        ("alerts", "severity,state"),
        ("notifications", "state,channel"),
    ):
        path, wanted = f"/api/v1/{name}", {"id", *fields.replace(" ", "").split(",")}
        whole, cut = (
            client.get(path).get_json()[name],
            client.get(path, query_string={"fields": fields}).get_json()[name],
        )
        assert cut == [{key: row[key] for key in row if key in wanted} for row in whole]
        assert cut and all(set(row) == wanted for row in cut)


def test_a_run_holds_the_requested_fields(client):
    assert client.get("/api/v1/runs/a?fields=config,alerts").get_json().keys() == {
        "id",
        "config",
        "alerts",
    }
    response = client.get("/api/v1/runs/a?fields=config,colour")
    problem = response.get_json(force=True)
    assert (response.status_code, problem["field"]) == (422, "fields")
    assert (
        "'config,colour' is not a list, separated by commas, each one of alerts, config"
        in problem["detail"]
    )


@pytest.mark.parametrize(
    ("path", "field", "detail"),
    [
        ("/api/v1/runs?projct=x", "projct", "Unknown parameter 'projct'. Use: project, status, q,"),
        ("/api/v1/rules?x=", "x", "Unknown parameter 'x'. Use: project"),
        ("/api/v1/channels?x=1", "x", "Unknown parameter 'x'. This route has none."),
        ("/api/v1/runs?limit=many", "limit", "limit: 'many' is not a whole number from 1 to 200"),
        ("/api/v1/runs?limit=", "limit", "limit: '' is not a whole number from 1 to 200"),
        ("/api/v1/runs?status=happy", "status", "status: 'happy' is not one of completed, failed"),
        ("/api/v1/alerts?state=shut", "state", "state: 'shut' is not one of open, averted"),
        ("/api/v1/compare", "runs", "runs is required: 2 to 20 values, separated by commas"),
    ],
)
def test_an_invalid_parameter_is_refused_with_the_valid_values(sqlite_client, path, field, detail):
    response = sqlite_client.get(path)
    problem = response.get_json(force=True)
    assert (response.status_code, problem["field"]) == (422, field)
    assert problem["detail"].startswith(detail)


def test_an_empty_parameter_counts_as_missing(client):
    for query in ("project=", "q=%20", "fields=", "cursor="):
        assert client.get(f"/api/v1/runs?{query}").data == client.get("/api/v1/runs").data, query


@pytest.mark.parametrize(
    ("accept", "status"),
    [("text/csv", 406), ("application/json;q=0", 406), ("*/*", 200), ("application/*", 200), ("text/html, */*;q=0.1", 200)],
)  # fmt: skip
def test_an_unacceptable_content_type_is_refused(sqlite_client, accept, status):
    response = sqlite_client.get("/api/v1/runs", headers={"Accept": accept})
    assert response.status_code == status
    if status == 406:
        assert response.mimetype == "application/problem+json"
        assert "application/json" in response.get_json(force=True)["detail"]


def test_unauthenticated_clients_learn_nothing_about_parameters(sqlite_client, token_of):
    token_of("read")
    assert (
        sqlite_client.get("/api/v1/runs?projct=x", headers={"Accept": "text/csv"}).status_code
        == 401
    )
