"""The outbox and the channels over HTTP."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from memagent.wire.messages import RunStart
from memagent_server.app import create_app
from memagent_server.notify import REQUIRED_SETTINGS, channels
from memagent_server.notify.channel import Channel, DeliveryFailedError
from memagent_server.notify.dispatcher import Dispatcher
from memagent_server.store.alerts import add_transition, open_alert
from memagent_server.store.due_notifications import ChannelFilter
from memagent_server.store.runs import start_run


class Refusing(Channel):
    def send(self, story):
        raise DeliveryFailedError("it was told never", is_final=True)


@pytest.fixture
def filled(database, client):
    """One dead notification of run `a`, and a waiting one of run `b`."""
    for run_id, channel in (("a", "webhook"), ("b", "email")):
        with database.write() as session:
            start_run(session, RunStart(run_id=run_id, name=f"run {run_id}"), 1.0)
            alert = open_alert(session, run_id=run_id, stream_id=None, rule="oom_forecast", severity="warning", state="firing", step=5,
                               summary="", data={"step": 5}, now=1.0)  # fmt: skip
            add_transition(
                session,
                alert,
                from_state="pending",
                to_state="firing",
                reason="",
                now=1.0,
                channels=[channel],
            )
    Dispatcher(database, ChannelFilter("webhook"), Refusing(), "http://x", lambda: 2.0).turn()
    return client


def test_it_lists_dead_notifications_with_their_error(filled):
    (dead,) = filled.get("/api/v1/notifications?state=dead").get_json()["notifications"]
    assert (dead["channel"], dead["state"], dead["attempts"]) == ("webhook", "dead", 1)
    assert (dead["last_error"], dead["run_id"], dead["run_name"]) == (
        "it was told never",
        "a",
        "run a",
    )
    assert (dead["rule"], dead["to_state"], dead["severity"]) == (
        "oom_forecast",
        "firing",
        "warning",
    )
    assert dead["next_attempt_at"] is None and dead["created_at"].endswith("Z")


def test_it_lists_by_run_channel_and_page(filled):
    assert [
        item["run_id"]
        for item in filled.get("/api/v1/notifications?run=b").get_json()["notifications"]
    ] == ["b"]
    assert [
        item["run_id"]
        for item in filled.get("/api/v1/notifications?channel=email").get_json()["notifications"]
    ] == ["b"]
    first = filled.get("/api/v1/notifications?limit=1").get_json()
    second = filled.get(f"/api/v1/notifications?limit=1&cursor={first['next_cursor']}").get_json()
    assert [page["notifications"][0]["run_id"] for page in (first, second)] == ["b", "a"]
    assert second["next_cursor"] is None
    assert filled.get("/api/v1/notifications?state=lost").status_code == 422


def test_it_retries_a_dead_notification(filled):
    (dead,) = filled.get("/api/v1/notifications?state=dead").get_json()["notifications"]
    assert filled.post(f"/api/v1/notifications/{dead['id']}/retry").get_json() == {
        "id": dead["id"],
        "state": "waiting",
    }
    assert filled.post(f"/api/v1/notifications/{dead['id']}/retry").status_code == 409
    for unknown in (99, 2**62, 2**70):
        problem = filled.post(f"/api/v1/notifications/{unknown}/retry")
        assert (problem.status_code, problem.mimetype) == (404, "application/problem+json")
    assert filled.get("/api/v1/notifications?state=dead").get_json()["notifications"] == []


@pytest.fixture
def receiver():
    """(address, received bodies)"""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", received
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def with_webhook(sqlite_database, make_settings, receiver):
    """A client of a server with the channel `webhook`."""
    settings = make_settings(
        sqlite_database.url,
        webhook_url=receiver[0],
        allow_local_webhooks=True,
        notify_severities={"webhook": "critical"},
    )
    return create_app(settings, sqlite_database).test_client()


def test_it_lists_and_tests_channels(with_webhook, receiver):
    results = {
        item["channel"]: item
        for item in with_webhook.get("/api/v1/channels").get_json()["channels"]
    }
    assert results["webhook"] == {
        "channel": "webhook",
        "is_set_up": True,
        "least_severity": "critical",
    }
    assert results["teams"]["is_set_up"] is False
    body = with_webhook.post("/api/v1/channels/webhook/test").get_json()
    assert body == {"channel": "webhook", "ok": True, "answer": "status 200"}
    assert b"Test: memagent can reach you here. Nothing is wrong" in receiver[1][0]
    assert (
        "docs/notifications.md"
        in with_webhook.post("/api/v1/channels/teams/test").get_json()["detail"]
    )
    assert "slack_bot" in with_webhook.post("/api/v1/channels/fax/test").get_json()["detail"]


def test_the_page_shows_channels_and_tests_them(with_webhook, receiver):
    page = with_webhook.get("/settings/channels").get_data(as_text=True)
    assert (
        "critical only" in page
        and page.count("Send test message") == 1
        and "every notification was delivered" in page
    )
    page = with_webhook.post("/settings/channels", data={"test_channel": "webhook"}).get_data(
        as_text=True
    )
    assert "webhook: accepted, status 200" in page and len(receiver[1]) == 1
    assert (
        with_webhook.get("/settings").get_data(as_text=True).count('href="/settings/channels"') == 1
    )


def test_the_page_lists_failed_notifications_and_retries_them(filled):
    page = filled.get("/settings/channels").get_data(as_text=True)
    assert "it was told never" in page and "run a" in page and "run b" not in page
    page = filled.post("/settings/channels", data={"retry": "1"}).get_data(as_text=True)
    assert "sent again" in page and "it was told never" not in page
    assert filled.post("/settings/channels", data={"retry": "x"}).status_code == 422
    assert filled.post("/settings/channels", data={"retry": "1"}).status_code == 409


def test_the_page_lists_configured_channels_first_and_the_settings_of_others(with_webhook):
    page = with_webhook.get("/settings/channels", headers={"Accept": "text/html"}).text
    assert page.index(">Webhook</th>") < page.index(">Slack bot</th>")
    assert "needs <code>MEMAGENT_TEAMS_WEBHOOK_URL</code>" in page
    assert "MEMAGENT_WEBHOOK_URL" not in page


def test_each_channel_is_configured_by_its_settings(make_settings):
    values = {
        "MEMAGENT_SMTP_URL": "smtp://mail.example.org",
        "MEMAGENT_EMAIL_TO": ("a@example.org",),
    }
    for name, needs in REQUIRED_SETTINGS.items():
        wanted = {
            need.removeprefix("MEMAGENT_").lower(): values.get(need, "https://example.org/x")
            for need in needs
        }
        assert list(channels(make_settings("sqlite:///x.db", **wanted))) == [name]
        for missing in wanted:
            without = {need: value for need, value in wanted.items() if need != missing}
            assert channels(make_settings("sqlite:///x.db", **without)) == {}
