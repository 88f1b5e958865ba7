"""The API and the page of routes."""

from __future__ import annotations

import time

import pytest

from memagent.wire.messages import RunStart
from memagent_server.app import create_app
from memagent_server.settings.channels import NamedChannel
from memagent_server.store.alerts import add_transition, open_alert
from memagent_server.store.runs import start_run

PAGE = "/settings/routing"
HTML = {"Accept": "text/html"}
VISION = {"name": "vision", "projects": ["vis*"], "channels": ["vision"]}


@pytest.fixture
def client(database, make_settings):
    """A client of a server with the channels `webhook` and `vision`."""
    settings = make_settings(
        database.url,
        webhook_url="http://127.0.0.1:9/x",
        channels=(NamedChannel("vision", "webhook", "http://127.0.0.1:9/very-secret"),),
    )
    return create_app(settings, database).test_client()


def put(client, *routes):
    return client.put("/api/v1/routes", json={"routes": routes})


def names(client):
    return [route["name"] for route in client.get("/api/v1/routes").get_json()["routes"]]


def notify(database, run_id, project, channels):
    with database.write() as session:
        now = time.time()
        start_run(session, RunStart(run_id=run_id, project=project), now)
        alert = open_alert(session, run_id=run_id, stream_id=None, rule="oom_forecast", severity="warning", state="firing",
                           step=5, summary="", data={"step": 5}, now=now)  # fmt: skip
        add_transition(
            session, alert, from_state="pending", to_state="firing", reason="", now=now,
            channels=channels,
        )  # fmt: skip


def test_routes_are_replaced_as_a_whole(client):
    answer = put(client, VISION, {"name": "rest", "severity": "critical"}).get_json()
    assert [route["name"] for route in answer["routes"]] == ["vision", "rest"]
    assert answer["routes"][0] == {
        **VISION, "users": [], "tags": [], "rules": [], "severity": "note", "goes_on": False,
    }  # fmt: skip
    assert (answer["channels"], answer["others"]) == (["webhook", "vision"], ["webhook"])
    assert client.get("/api/v1/routes").get_json() == answer
    assert put(client).get_json()["routes"] == [] and names(client) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"channels": ["fax"]}, "routes.1.channels"),
        ({"rules": ["oom*"]}, "routes.1.rules"),
        ({"name": "vision"}, "routes.1.name"),
        ({"name": ""}, "name"),
        ({"severity": "loud"}, "severity"),
        ({"projects": ["a\nb"]}, "projects"),
        ({"tags": ["x" * 201]}, "tags"),
        ({"users": ["u"] * 51}, "users"),
        ({"other": 1}, "other"),
    ],
)
def test_an_invalid_route_is_named_and_nothing_is_stored(client, changes, named):
    response = put(client, VISION, {"name": "second", **changes})
    assert response.status_code == 422 and named in response.text
    assert names(client) == []


def test_a_preview_shows_what_the_last_days_would_have_been(client, database):
    notify(database, "a", "vision", ["webhook", "vision"])
    notify(database, "b", "nlp", ["webhook", "vision"])
    muted = {"name": "muted", "projects": ["nlp"]}
    answer = client.post("/api/v1/routes/preview", json={"routes": [VISION, muted]}).get_json()
    assert (answer["messages"], answer["unrouted"], answer["is_cut"]) == (2, 1, False)
    assert [
        (item["channel"], item["delivered"], item["routed"]) for item in answer["channels"]
    ] == [("webhook", 2, 0), ("vision", 2, 1)]
    assert names(client) == []
    page = client.get(PAGE, headers=HTML).text
    assert "2 messages: how many were queued" in page and "very-secret" not in page


def test_the_page_adds_edits_moves_and_removes_routes(client):
    form = {"name": "vision", "projects": "vis*, vit", "channels": ["vision"], "severity": "note"}
    assert client.post(PAGE, data=form).status_code == 303
    client.post(PAGE, data={"name": "rest", "channels": ["webhook"], "goes_on": "on"})
    assert names(client) == ["vision", "rest"]
    client.post(PAGE, data={"route": "rest", "what": "up"})
    assert names(client) == ["rest", "vision"]
    client.post(PAGE, data={"route": "rest", "what": "down"})
    assert names(client) == ["vision", "rest"]
    html = client.get(f"{PAGE}?route=vision", headers=HTML).text
    assert 'value="vis*, vit"' in html and "Edit vision" in html
    client.post(PAGE, data={**form, "route": "vision", "name": "vision team"})
    assert names(client) == ["vision team", "rest"]
    client.post(PAGE, data={"route": "rest", "what": "remove"})
    (route,) = client.get("/api/v1/routes").get_json()["routes"]
    assert route["projects"] == ["vis*", "vit"] and not route["goes_on"]


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"name": ""}, 422),
        ({"name": "x", "channels": "fax"}, 422),
        ({"name": "x", "route": "gone"}, 404),
        ({"route": "vision", "what": "explode"}, 422),
        ({"what": "remove"}, 422),
    ],
)
def test_the_page_refuses_bad_forms(client, form, status):
    put(client, VISION)
    assert client.post(PAGE, data=form).status_code == status
    assert names(client) == ["vision"]


def test_changes_are_in_the_audit_log(client):
    put(client, VISION)
    client.post(PAGE, data={"route": "vision", "what": "remove"})
    client.post("/api/v1/routes/preview", json={"routes": []})
    changes = client.get("/api/v1/changes").get_json()["changes"]
    assert [(change["route"], change["subject"]) for change in changes] == [
        (PAGE, "remove vision"),
        ("/api/v1/routes", ""),
    ]
