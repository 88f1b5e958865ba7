"""`memagent notify` in another process."""

from __future__ import annotations

import json
import os
import subprocess

import pytest


@pytest.fixture
def notify(tmp_path, memagent_fork):
    """notify(*arguments, **settings): the finished process."""

    def notify(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith("MEMAGENT_")
        }
        environ |= {
            "XDG_DATA_HOME": str(tmp_path),
            **{f"MEMAGENT_{name}": value for name, value in settings.items()},
        }
        return memagent_fork.run("-m", "memagent", "notify", *arguments, env=environ)

    return notify


def test_it_sends_a_test_message_and_prints_the_receipt(notify, slack):
    done = notify(
        "test",
        "slack_bot",
        SLACK_BOT_TOKEN=slack.token,
        SLACK_CHANNEL=slack.channel,
        SLACK_API_URL=slack.url,
    )
    assert done.returncode == 0, done.stderr
    (message,) = slack.messages.values()
    assert done.stdout == f"slack_bot: accepted, ts {message['ts']}, channel C1\n"
    assert "Test: memagent can reach you here. Nothing is wrong" in message["text"]


def test_a_failure_has_advice_without_the_secret(notify, slack):
    done = notify(
        "test",
        "slack_bot",
        SLACK_BOT_TOKEN="xoxb-wrong",
        SLACK_CHANNEL="C1",
        SLACK_API_URL=slack.url,
    )
    assert done.returncode == 1 and "check MEMAGENT_SLACK_BOT_TOKEN" in done.stderr
    assert "xoxb-wrong" not in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_it_tests_all_and_prints_json(notify, receiver):
    done = notify(
        "test",
        "all",
        "--json",
        WEBHOOK_URL=receiver.url,
        ALLOW_LOCAL_WEBHOOKS="1",
        TEAMS_WEBHOOK_URL="http://127.0.0.1:9/x",
    )
    results = json.loads(done.stdout)
    assert done.returncode == 1 and [(result["channel"], result["ok"]) for result in results] == [
        ("webhook", True),
        ("teams", False),
    ]


@pytest.mark.parametrize("channel", ["email", "all"])
def test_it_explains_how_to_configure_a_channel(notify, channel):
    done = notify("test", channel)
    assert (
        done.returncode == 1
        and "docs/notifications.md" in done.stderr
        and len(done.stderr.splitlines()) == 1
    )


def test_it_lists_channels(notify):
    done = notify("list", "--json", WEBHOOK_URL="http://x", NOTIFY_SEVERITIES="webhook=critical")
    results = {row["channel"]: row for row in json.loads(done.stdout)}
    assert results["webhook"] == {
        "channel": "webhook",
        "is_set_up": True,
        "least_severity": "critical",
    }
    assert (
        "webhook        configured, from severity note"
        in notify("list", WEBHOOK_URL="http://x").stdout
    )


def test_it_opens_and_closes_a_test_in_pagerduty(notify, receiver):
    receiver.answers = [(202, b'{"status": "success"}', {})] * 2
    assert (
        notify(
            "test", "pagerduty", PAGERDUTY_ROUTING_KEY="k", PAGERDUTY_URL=receiver.url
        ).returncode
        == 0
    )
    first, second = (json.loads(body) for _, _, body in receiver.requests)
    assert (first["event_action"], first["payload"]["severity"], second["event_action"]) == (
        "trigger",
        "info",
        "resolve",
    )
    assert first["dedup_key"] == second["dedup_key"]
