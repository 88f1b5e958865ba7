"""No secret of a channel appears in debug logs, errors, responses, pages or reprs."""

from __future__ import annotations

import logging

import pytest

from memagent.wire.messages import RunStart
from memagent_server.app import create_app
from memagent_server.notify import channels
from memagent_server.notify.channel import mask
from memagent_server.notify.dispatcher import Dispatcher
from memagent_server.notify.slack_bot import SlackBot
from memagent_server.settings import CHANNEL_NAMES
from memagent_server.store.alerts import add_transition, open_alert
from memagent_server.store.due_notifications import ChannelFilter
from memagent_server.store.runs import start_run

SECRET = "s3cr3t-0f-th3-ch4nn3l"


def settings_of(name: str, url: str) -> dict:
    hidden = f"{url}/{SECRET}"
    return {
        "slack_bot": {"slack_bot_token": f"xoxb-{SECRET}", "slack_channel": "C1", "slack_api_url": url + "/"},
        "slack_webhook": {"slack_webhook_url": hidden},
        "webhook": {"webhook_url": hidden, "webhook_secret": f"key {SECRET}"},
        "email": {"smtp_url": f"{url.replace('http', 'smtp')}".replace("//", f"//ana:{SECRET}@"), "email_from": "a@example.org",
                  "email_to": ("b@example.org",)},
        "pagerduty": {"pagerduty_routing_key": SECRET, "pagerduty_url": url},
        "alertmanager": {"alertmanager_url": url.replace("//", f"//ana:{SECRET}@")},
        "discord": {"discord_webhook_url": hidden},
        "teams": {"teams_webhook_url": hidden},
        "grafana": {"grafana_url": url, "grafana_token": SECRET},
    }[name]  # fmt: skip


@pytest.mark.parametrize("trouble", ["refused", "rate limited", "nobody there", "echoed"])
@pytest.mark.parametrize("name", CHANNEL_NAMES)
def test_it_shows_no_secret(sqlite_database, make_settings, receiver, caplog, name, trouble):
    receiver.answers = {
        "refused": [(403, b'{"ok": false, "error": "no"}', {})],
        "rate limited": [(429, b'{"ok": false, "error": "ratelimited"}', {"Retry-After": "1"})],
        "nobody there": [],
        "echoed": [
            (
                400,
                f'{{"ok": false, "error": "what is {"xoxb-" if name == "slack_bot" else ""}{SECRET}?"}}'.encode(),
                {},
            )
        ],
    }[trouble] * 3
    url = "http://127.0.0.1:9" if trouble == "nobody there" or name == "email" else receiver.url
    settings = make_settings(
        sqlite_database.url, allow_local_webhooks=True, **settings_of(name, url)
    )
    (channel,) = channels(settings).values()
    enqueue(sqlite_database, name)
    client = create_app(settings, sqlite_database).test_client()
    with caplog.at_level(logging.DEBUG):
        Dispatcher(sqlite_database, ChannelFilter(name), channel, "http://x", lambda: 100.0).turn()
        responses = [
            client.get("/api/v1/notifications"),
            client.get("/api/v1/alerts"),
            client.get("/alerts", headers={"Accept": "text/html"}),
            client.get("/runs/r", headers={"Accept": "text/html"}),
            client.get("/api/v1/channels"),
            client.post(f"/api/v1/channels/{name}/test"),
            client.get("/metrics"),
        ]
    (output,) = responses[0].get_json()["notifications"]
    assert output["last_error"] and output["state"] in ("waiting", "dead")
    assert responses[5].status_code == 502 and responses[5].get_json()["ok"] is False
    page_text = [
        caplog.text,
        repr(settings),
        repr(channel),
        *(response.get_data(as_text=True) for response in responses),
    ]
    assert [text for text in page_text if SECRET in text] == []


def test_an_unexpected_error_shows_no_secret(sqlite_database, caplog):
    class Buggy(SlackBot):
        def send(self, message):
            raise ValueError(f"a bug that shows {self._client.token}")

    enqueue(sqlite_database, "slack_bot")
    Dispatcher(
        sqlite_database, ChannelFilter("slack_bot"), Buggy(SECRET, "C1"), "http://x", lambda: 100.0
    ).turn()
    assert "a bug that shows [hidden]" in caplog.text and SECRET not in caplog.text


def test_it_masks_the_longest_first():
    assert mask("http://x/abc and abc", ("abc", "http://x/abc", "")) == "[hidden] and [hidden]"


def enqueue(database, channel: str) -> None:
    with database.write() as session:
        start_run(session, RunStart(run_id="r"), 1.0)
        alert = open_alert(session, run_id="r", stream_id=None, rule="oom_forecast", severity="warning", state="firing", step=5,
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
