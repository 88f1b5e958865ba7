"""The API and the form of schedules."""

from __future__ import annotations

import pytest

from memagent_server.app import create_app
from memagent_server.schemas.schedules import WEEKDAYS

PAGE = "/settings/routing"
HTML = {"Accept": "text/html"}
NIGHT = {"time_zone": "Europe/Berlin", "quiet_from": "22:00", "quiet_to": "07:00"}


@pytest.fixture
def client(database, make_settings):
    """A client of a server with the channels `webhook` and `pagerduty`."""
    settings = make_settings(
        database.url, webhook_url="http://127.0.0.1:9/x", pagerduty_routing_key="key"
    )
    return create_app(settings, database).test_client()


def put(client, **schedules):
    return client.put("/api/v1/schedules", json={"schedules": schedules})


def test_schedules_are_added_replaced_and_removed(client):
    answer = put(client, webhook={**NIGHT, "daily": True}, pagerduty=NIGHT).get_json()
    assert answer["schedules"]["webhook"] == {
        **NIGHT, "quiet_days": [], "digest_at": "08:00", "daily": True, "waste_day": None, "projects": [],
    }  # fmt: skip
    assert answer["digests"] == [
        {"channel": "webhook", "kind": "daily", "sent_at": None, "last_error": None}
    ]
    answer = put(client, webhook=None).get_json()
    assert list(answer["schedules"]) == ["pagerduty"] and answer["digests"] == []
    assert client.get("/api/v1/schedules").get_json() == answer


@pytest.mark.parametrize(
    ("channel", "changes", "named"),
    [
        ("fax", {}, "schedules.fax"),
        ("webhook", {"time_zone": "Mars/Olympus"}, "schedules.webhook.time_zone"),
        ("webhook", {"quiet_to": None}, "schedules.webhook.quiet_to"),
        ("webhook", {"quiet_to": "22:00"}, "schedules.webhook.quiet_to"),
        ("webhook", {"quiet_from": "25:00"}, "quiet_from"),
        ("webhook", {"quiet_days": list(WEEKDAYS)}, "schedules.webhook.quiet_days"),
        ("webhook", {"quiet_days": ["someday"]}, "quiet_days"),
        ("webhook", {"waste_day": "someday"}, "waste_day"),
        ("pagerduty", {"daily": True}, "schedules.pagerduty.daily"),
        ("webhook", {"other": 1}, "other"),
    ],
)
def test_an_invalid_schedule_is_named_and_nothing_is_stored(client, channel, changes, named):
    response = put(client, **{"pagerduty": NIGHT, channel: {**NIGHT, **changes}})
    assert response.status_code == 422 and named in response.text
    assert client.get("/api/v1/schedules").get_json()["schedules"] == {}


def test_the_page_saves_edits_and_removes(client):
    form = {"channel": "webhook", **NIGHT, "digest_at": "09:30", "daily": "on", "projects": "a, b"}
    form["quiet_days"] = ["saturday", "sunday"]
    assert client.post("/settings/schedules", data=form).status_code == 303
    stored = client.get("/api/v1/schedules").get_json()["schedules"]["webhook"]
    assert (stored["digest_at"], stored["daily"], stored["projects"]) == ("09:30", True, ["a", "b"])
    html = client.get(f"{PAGE}?channel=webhook", headers=HTML).text
    assert 'value="Europe/Berlin"' in html and "22:00 to 07:00, Saturday, Sunday" in html
    assert html.count("checked") == 3 and stored["quiet_days"] == ["saturday", "sunday"]
    for bad in ({"channel": "fax"}, {**form, "quiet_from": "x"}):
        assert client.post("/settings/schedules", data=bad).status_code == 422
    client.post("/settings/schedules", data={"remove": "webhook"})
    assert client.get("/api/v1/schedules").get_json()["schedules"] == {}
    subjects = [change["subject"] for change in client.get("/api/v1/changes").get_json()["changes"]]
    assert "webhook" in subjects
