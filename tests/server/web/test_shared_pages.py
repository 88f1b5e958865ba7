"""Refreshes of open pages share a rendering: it is current, and has its reader's rights and forms."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace

import pytest
from flask import template_rendered

from memagent.units import GIB
from memagent_server.http.csrf import FIELD
from memagent_server.web.rendering import REFRESH_HEADER

HTML = {"Accept": "text/html"}
REFRESH = {**HTML, REFRESH_HEADER: "1"}


@contextmanager
def renderings(app):
    """Yield a list of the templates that are rendered meanwhile."""
    names = []

    def add(sender, template, context, **_):
        names.append(template.name)

    with template_rendered.connected_to(add, app):
        yield names


def wait(app, seconds):
    context = app.extensions["memagent"]
    at = context.clock() + seconds
    app.extensions["memagent"] = replace(context, clock=lambda: at)


def start(client, run_id="r", status="completed"):
    devices = [{"id": "host", "kind": "host", "name": "host", "limit_bytes": 8 * GIB}]
    client.post("/api/v1/runs", json={"run_id": run_id, "devices": devices})
    columns = {"step": [1, 2], "time_s": [1.0, 2.0], "allocated_bytes": [GIB, 2 * GIB]}
    client.post(
        f"/api/v1/runs/{run_id}/batches",
        json={"rank": 0, "seq": 0, "chunks": [{"stream": "host", "columns": columns}]},
    )
    if status:
        client.post(f"/api/v1/runs/{run_id}/finish", json={"status": status})


def refresh(client, path, etag=None):
    return client.get(path, headers={**REFRESH, **({"If-None-Match": etag} if etag else {})})


def test_open_pages_at_rest_are_rendered_once(sqlite_app, sqlite_client):
    start(sqlite_client)
    wait(sqlite_app, 0)
    for path in ("/", "/alerts", "/runs/r"):
        with renderings(sqlite_app) as names:
            etag = refresh(sqlite_client, path).headers["ETag"]
            again = [refresh(sqlite_client, path, etag) for _ in range(5)]
        assert len(names) == 1, path
        assert {(item.status_code, item.data) for item in again} == {(304, b"")}
        assert refresh(sqlite_client, path).get_data(as_text=True).endswith("</html>")


def test_a_page_that_a_reader_loads_is_always_new(sqlite_app, sqlite_client):
    start(sqlite_client)
    wait(sqlite_app, 0)
    refresh(sqlite_client, "/")
    start(sqlite_client, "another")
    assert "another" in sqlite_client.get("/", headers=HTML).get_data(as_text=True)
    assert "another" not in refresh(sqlite_client, "/").get_data(as_text=True)
    wait(sqlite_app, 1.1)
    assert "another" in refresh(sqlite_client, "/").get_data(as_text=True)


def test_an_unchanged_page_is_kept_longer_up_to_its_interval(sqlite_app, sqlite_client):
    start(sqlite_client)
    refresh(sqlite_client, "/")
    with renderings(sqlite_app) as names:
        for _ in range(40):
            wait(sqlite_app, 0.5)
            refresh(sqlite_client, "/")
    assert 7 <= len(names) <= 9, "at 1, 3 s and then every 3 s"


CHANGES = {
    "tags": lambda client: client.post("/runs", data={"what": "tag", "runs": "r", "tag": "best"}),
    "notes": lambda client: client.patch("/api/v1/runs/r", json={"notes": "n"}),
    "archive": lambda client: client.post("/runs", data={"what": "archive", "runs": "r"}),
    "event": lambda client: client.post(
        "/api/v1/runs/r/batches",
        json={"rank": 0, "seq": 1, "events": [{"kind": "note", "step": 2}]},
    ),
    "snapshot": lambda client: client.post(
        "/api/v1/runs/r/snapshots",
        json={"rank": 0, "step": 2, "method": "census", "notes": ["big"]},
    ),
    "launch": lambda client: client.post("/api/v1/runs", json={"run_id": "r", "attempt": 1}),
    "prediction": lambda client: client.post(
        "/api/v1/runs/r/predictions",
        json={"rank": 0, "method": "formula", "peak_allocated_bytes": 3 * GIB},
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_ended_run_is_rendered_again_when_it_changes(sqlite_app, sqlite_client, change):
    start(sqlite_client)
    etag = refresh(sqlite_client, "/runs/r").headers["ETag"]
    wait(sqlite_app, 16)
    with renderings(sqlite_app) as names:
        assert refresh(sqlite_client, "/runs/r", etag).status_code == 304
    assert names == [], "one query tells that nothing has changed"
    response = CHANGES[change](sqlite_client)
    assert response.status_code < 400, response.get_data(as_text=True)
    wait(sqlite_app, 16)
    assert refresh(sqlite_client, "/runs/r", etag).status_code == 200


def test_each_reader_gets_tokens_of_forms_of_their_own(sqlite_app):
    readers = [sqlite_app.test_client() for _ in range(2)]
    start(readers[0])
    wait(sqlite_app, 0)
    for reader in readers:
        token = re.search(rf'name="{FIELD}" value="(\w+)"', refresh(reader, "/").get_data(True))[1]
        data = {"what": "tag", "runs": "r", "tag": "x", FIELD: token}
        answer = reader.post("/runs", data=data, headers={"Origin": "http://localhost"})
        assert answer.status_code == 303
