"""Asking a script by the API and on its run's page, and what the reply to a batch carries."""

from __future__ import annotations

import pytest

HTML = {"Accept": "text/html"}
RUN = {"run_id": "r", "environment": {"takes_commands": True}}


@pytest.fixture
def client(sqlite_client):
    assert sqlite_client.post("/api/v1/runs", json=RUN).status_code == 201
    return sqlite_client


def ask(client, kind="stop", run_id="r"):
    return client.post(f"/api/v1/runs/{run_id}/commands", json={"kind": kind})


def send(client, seq, **batch):
    return client.post("/api/v1/runs/r/batches", json={"seq": seq, **batch}).get_json()["commands"]


def test_rank_0_gets_a_request_until_it_answers(client):
    number = ask(client, "checkpoint").get_json()["id"]
    assert [(item["kind"], item["data"]["id"]) for item in send(client, 0)] == [
        ("checkpoint", number)
    ]
    reply = {"kind": "command_reply", "data": {"id": number, "state": "done"}}
    assert send(client, 1, events=[reply]) == []
    (command,) = client.get("/api/v1/runs/r/commands").get_json()["commands"]
    assert (command["command"], command["state"]) == ("checkpoint", "done")


def test_other_ranks_and_replayed_batches_get_none(client):
    ask(client)
    assert send(client, 0, rank=1) == []
    response = client.post(
        "/api/v1/runs/r/batches", json={"seq": 0}, headers={"Memagent-Replayed": "1"}
    )
    assert response.get_json()["commands"] == []


def test_refusals_are_one_sentence(client):
    assert ask(client, "kill").status_code == 422
    assert ask(client, run_id="nothing").status_code == 404
    assert client.get("/api/v1/runs/nothing/commands").status_code == 404
    client.post("/api/v1/runs/r/finish", json={"status": "completed"})
    response = ask(client)
    assert response.status_code == 409 and "has ended (completed)" in response.get_json()["detail"]


def test_the_page_asks_and_shows_what_became_of_it(client):
    html = client.get("/runs/r", headers=HTML).text
    assert 'value="checkpoint"' in html and 'value="stop"' in html
    response = client.post("/runs/r/commands", data={"kind": "stop"})
    assert response.headers["Location"] == "/runs/r"
    assert "Stop requested" in client.get("/runs/r", headers=HTML).text
    assert client.post("/runs/r/commands", data={"kind": "kill"}).status_code == 422
    client.post("/api/v1/runs/r/finish", json={"status": "completed"})
    html = client.get("/runs/r", headers=HTML).text
    assert "not delivered: the run had ended" in html and 'value="stop"' not in html


def test_the_page_says_that_a_script_takes_none(sqlite_client):
    sqlite_client.post("/api/v1/runs", json={"run_id": "r"})
    html = sqlite_client.get("/runs/r", headers=HTML).text
    assert "The script takes no commands" in html and 'value="stop"' not in html
