"""Edits of a run, and requests to its script, by the API and on the run's page."""

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


def test_the_page_has_no_buttons_for_a_script_that_takes_none(sqlite_client):
    sqlite_client.post("/api/v1/runs", json={"run_id": "r"})
    html = sqlite_client.get("/runs/r", headers=HTML).text
    assert "How to stop a run from here" in html and 'value="stop"' not in html


def edit(client, **changes):
    return client.patch("/api/v1/runs/r", json=changes)


def test_an_edit_changes_what_it_names(client):
    edited = edit(client, name="best so far", notes="# Why\n", tags=["x", "y", "x"]).get_json()
    assert (edited["name"], edited["tags"]) == ("best so far", ["x", "y"])
    assert edit(client, is_archived=True).get_json()["notes"] == "# Why\n"
    (run,) = client.get("/api/v1/runs?archived=1&q=why").get_json()["runs"]
    assert (run["name"], run["is_archived"]) == ("best so far", True)
    assert edit(client).get_json()["name"] == "best so far"


def test_a_launch_that_resumes_the_run_leaves_edits_alone(client):
    edit(client, name="mine", tags=["kept"], notes="n")
    client.post("/api/v1/runs", json={**RUN, "attempt": 1, "name": "theirs", "tags": ["new"]})
    run = client.get("/api/v1/runs/r").get_json()
    assert (run["name"], run["tags"], run["notes"]) == ("mine", ["kept"], "n")


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": "x" * 201},
        {"name": "a\0b"},
        {"notes": "x" * 20_001},
        {"tags": ["a\0b"]},
        {"tags": [str(number) for number in range(101)]},
        {"status": "completed"},
    ],
)
def test_an_edit_out_of_bounds_changes_nothing(client, changes):
    before = client.get("/api/v1/runs/r").get_json()
    assert edit(client, **changes).status_code == 422
    assert client.get("/api/v1/runs/r").get_json() == before


def test_an_unknown_run_has_no_edits(client):
    assert client.patch("/api/v1/runs/nothing", json={"name": "x"}).status_code == 404


def test_the_page_shows_notes_as_markdown_without_what_could_run(client):
    notes = "# Plan\n<b onclick=x()>bold</b> [a](https://a.example) ![i](https://i.example/x.png)"
    response = client.post("/runs/r", data={"name": " new name ", "notes": f"{notes}\r\n- one"})
    assert (response.status_code, response.location) == (303, "/runs/r")
    html = client.get("/runs/r", headers=HTML).text
    assert "<h3>Plan</h3>" in html and "<li>one</li>" in html and ">new name</h1>" in html
    assert '<a href="https://a.example" rel="noopener noreferrer nofollow">a</a>' in html
    assert "&lt;b onclick" in html and "<b onclick" not in html
    assert 'src="https:' not in html


def test_a_form_that_only_adds_notes_is_no_new_name(client):
    client.post("/runs/r", data={"name": "r", "notes": "n"})
    client.post("/api/v1/runs", json={**RUN, "attempt": 1, "name": "theirs"})
    assert client.get("/api/v1/runs/r").get_json()["name"] == "theirs"
    response = client.post("/runs/r", data={"name": " ", "notes": ""})
    assert response.status_code == 422 and "name: enter 1 to 200 characters" in response.text


@pytest.fixture
def three(sqlite_client):
    for run_id in "abc":
        sqlite_client.post("/api/v1/runs", json={"run_id": run_id, "tags": ["x"]})
    return sqlite_client


def listed(client, **query):
    return {run["id"]: run for run in client.get("/api/v1/runs", query_string=query).json["runs"]}


def test_several_runs_are_changed_at_once(three):
    change = {"runs": ["a", "b", "a"], "add_tags": ["y"], "remove_tags": ["x"], "name": "both"}
    answer = three.patch("/api/v1/runs", json=change)
    assert (answer.status_code, answer.json) == (200, {"runs": 2})
    runs = listed(three)
    assert [runs[key]["tags"] for key in "abc"] == [["y"], ["y"], ["x"]]
    assert [runs[key]["name"] for key in "ab"] == ["both", "both"]
    three.patch("/api/v1/runs", json={"runs": ["a", "c"], "is_archived": True, "notes": "Old."})
    assert set(listed(three)) == {"b"} and set(listed(three, archived="1")) == {"a", "c"}
    assert three.get("/api/v1/runs/a").json["notes"] == "Old."
    three.patch("/api/v1/runs", json={"runs": ["b"], "tags": ["z"], "add_tags": ["w"]})
    assert listed(three)["b"]["tags"] == ["z", "w"]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"runs": ["a", "nobody"], "name": "n"}, 404),
        ({"runs": []}, 422),
        ({"runs": [f"r{number}" for number in range(201)]}, 422),
        ({"runs": ["a"], "name": ""}, 422),
        ({"runs": ["a"], "add_tags": ["\0"]}, 422),
        ({"runs": ["a"], "status": "oom"}, 422),
        ({"name": "n"}, 422),
    ],
)
def test_a_wrong_change_of_several_runs_changes_none(three, change, status):
    assert three.patch("/api/v1/runs", json=change).status_code == status
    assert listed(three)["a"]["name"] == "a" and listed(three)["a"]["tags"] == ["x"]


def test_several_runs_are_deleted_or_none(three):
    assert three.delete("/api/v1/runs?runs=a,nobody").status_code == 404
    assert set(listed(three)) == {"a", "b", "c"}
    assert three.delete("/api/v1/runs?runs=a,b,a").status_code == 204
    assert set(listed(three)) == {"c"}
    assert three.delete("/api/v1/runs").status_code == 422
