"""Shared failures in the API, on the pages of runs and alerts, in filters and in messages."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import unquote_plus

import pytest

from memagent_server.alerts.rule_config import Policies
from memagent_server.alerts.run_end import end_alerts
from memagent_server.notify.message_data import load_message
from memagent_server.notify.message_text import plain_text
from memagent_server.store import failures
from memagent_server.store.models import NotificationRow
from memagent_server.store.runs import lock_run

HTML = {"Accept": "text/html"}


def fail(client, run_id, *, status="oom", **start):
    body = {"run_id": run_id, "project": "vision", "user": run_id, **start}
    assert client.post("/api/v1/runs", json=body).status_code == 201
    event = {"kind": "oom", "step": 1, "data": {"phase": "forward", "forecast": {"cause": "leak"}}}
    client.post(f"/api/v1/runs/{run_id}/batches", json={"seq": 0, "events": [event]})
    client.post(f"/api/v1/runs/{run_id}/finish", json={"status": status, "error": "boom"})
    return client.get(f"/api/v1/runs/{run_id}").get_json()["failure"]


def text_of(html):
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_the_api_lists_resolves_and_reopens(client):
    failure = fail(client, "a")
    assert fail(client, "b") == failure
    (listed,) = client.get("/api/v1/failures?state=open&project=vision").get_json()["failures"]
    assert listed == client.get(f"/api/v1/failures/{failure}").get_json()
    assert (listed["runs"], listed["users"], listed["state"]) == (2, 2, "open")
    assert listed["title"] == "Out of memory in forward: leak"
    path = f"/api/v1/failures/{failure}/resolve"
    resolved = client.post(path, json={"by": "ann"}).get_json()
    assert (resolved["state"], resolved["resolved_by"]) == ("resolved", "ann")
    assert client.post(path, json={"who": "ann"}).status_code == 422
    assert client.get("/api/v1/failures?state=open").get_json()["failures"] == []
    assert client.post(f"/api/v1/failures/{failure}/reopen").get_json()["state"] == "open"


@pytest.mark.parametrize("method", ["GET /api/v1/failures/x", "POST /api/v1/failures/x/resolve"])
def test_an_unknown_failure_is_404(sqlite_client, method):
    verb, path = method.split()
    response = sqlite_client.open(path, method=verb)
    assert response.status_code == 404 and "'x'" in response.get_json()["detail"]


def test_the_page_of_a_run_links_to_all_runs_with_its_failure(client):
    failure = fail(client, "a")
    assert "First occurrence" in client.get("/runs/a", headers=HTML).text
    fail(client, "b")
    fail(client, "c", status="failed")
    html = client.get("/runs/a", headers=HTML).text
    assert re.search(r"Seen in 2 runs of 2 people since \w+day", text_of(html))
    address = re.search(r'<a href="([^"]+)" title="Out of memory', html)[1]
    assert unquote_plus(address) == f"/?where=failure = '{failure}'"
    listed = client.get(address.replace("/?", "/api/v1/runs?")).get_json()["runs"]
    assert {run["id"] for run in listed} == {"a", "b"}
    assert text_of(client.get(address, headers=HTML).text).count("out of memory") >= 2


def test_the_button_resolves_and_the_page_says_so(sqlite_client):
    failure = fail(sqlite_client, "a")
    assert "Resolve : Out of memory" in text_of(sqlite_client.get("/runs/a", headers=HTML).text)
    response = sqlite_client.post(f"/failures/{failure}/resolve", data={"next": "/runs/a"})
    assert (response.status_code, response.headers["Location"]) == (303, "/runs/a")
    text = text_of(sqlite_client.get("/runs/a", headers=HTML).text)
    assert "resolved First occurrence Reopen" in text


def test_the_page_of_failures_lists_them_by_state(sqlite_client, monkeypatch):
    def titles(state=""):
        html = sqlite_client.get("/failures", query_string={"state": state}, headers=HTML).text
        return re.findall(r'<th scope="row"><a class="strong" href="([^"]+)">([^<]+)<', html)

    assert titles() == []
    out_of_memory, error = fail(sqlite_client, "a"), fail(sqlite_client, "b", status="failed")
    ((address, _), _) = sorted(titles(), key=lambda item: out_of_memory not in item[0])
    listed = sqlite_client.get(unescape(address).replace("/?", "/api/v1/runs?")).get_json()["runs"]
    assert [run["id"] for run in listed] == ["a"]
    form = {"next": "/failures"}
    answer = sqlite_client.post(f"/failures/{error}/resolve", data=form)
    assert answer.headers["Location"] == "/failures"
    assert [len(titles(state)) for state in ("", "resolved", "all")] == [1, 1, 2]
    monkeypatch.setattr(failures, "MAX_FAILURES", 1)
    assert [len(titles(state)) for state in ("", "resolved")] == [1, 1], "cut within a state"
    assert sqlite_client.get("/failures?state=gone", headers=HTML).status_code == 422


def test_the_message_and_the_card_of_a_regressed_failure_say_so(
    sqlite_app, sqlite_database, sqlite_client
):
    failure = fail(sqlite_client, "a")
    sqlite_client.post(f"/api/v1/failures/{failure}/resolve")
    fail(sqlite_client, "b")
    now = sqlite_app.extensions["memagent"].clock()
    with sqlite_database.write() as session:
        policy = Policies(session).of("vision")
        end_alerts(session, lock_run(session, "b"), policy, ["webhook"], now)
    with sqlite_database.read() as session:
        (notification,) = session.query(NotificationRow)
        text = plain_text(load_message(session, notification, "http://here", now))
    assert re.search(
        r"Regressed: resolved by \w+ on \w+day, and back in a run that began later\n"
        r"Seen in 2 runs of 2 people since \w+day",
        text,
    ), text
    card = text_of(sqlite_client.get("/alerts?state=ended", headers=HTML).text)
    assert "regressed Seen in 2 runs of 2 people" in card
