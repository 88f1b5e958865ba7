"""Named channels: valid entries, and errors that name one and show no address."""

from __future__ import annotations

import pytest

from memagent.errors import SettingError
from memagent_server.notify import channels
from memagent_server.notify.slack_bot import SlackBot
from memagent_server.settings import Settings

MAIL = {"SMTP_URL": "smtp://x", "EMAIL_FROM": "a@b", "EMAIL_TO": "a@b"}


def settings(tmp_path, **variables: str) -> Settings:
    named = {f"MEMAGENT_{name}": value for name, value in variables.items()}
    return Settings.from_environ({"XDG_DATA_HOME": str(tmp_path), **named})


def test_each_has_a_name_a_kind_and_an_address(tmp_path):
    found = settings(
        tmp_path,
        CHANNELS="""vision=slack_webhook:https://hooks.example.org/a=b:c
        nlp=slack_bot:C0123 ops=pagerduty:key_1 leads=email:ana@example.org,bo@example.org""",
        NOTIFY_SEVERITIES="ops=critical",
        SLACK_BOT_TOKEN="xoxb-1",
        SLACK_CHANNEL="C1",
        **MAIL,
    )
    assert [(item.name, item.value) for item in found.channels] == [
        ("vision", "https://hooks.example.org/a=b:c"),
        ("nlp", "C0123"),
        ("ops", "key_1"),
        ("leads", ("ana@example.org", "bo@example.org")),
    ]
    assert found.notify_severities == {"ops": "critical"}
    configured = channels(found)
    assert list(configured) == ["slack_bot", "email", "vision", "nlp", "ops", "leads"]
    assert isinstance(configured["nlp"], SlackBot)
    assert "hooks.example.org" not in repr(found)
    assert "https://hooks.example.org/a=b:c" in found.secrets


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("https://secret", "entry 1: write NAME=KIND:ADDRESS"),
        ("ok=webhook:https://a UPPER=webhook:https://secret", "entry 2"),
        ("email=webhook:https://secret", "the name email is taken"),
        ("a=webhook:https://b a=webhook:https://secret", "the name a is taken"),
        ("a=fax:secret", "a: use a kind of slack_bot"),
        ("a=webhook:ftp://secret", "after webhook: write an http:// or https:// address"),
        ("a=webhook:https://secret:port", "after webhook: write"),
        ("a=slack_bot:C1", "slack_bot needs MEMAGENT_SLACK_BOT_TOKEN"),
        ("a=email:a@secret", "email needs MEMAGENT_SMTP_URL"),
        ("a=pagerduty:", "a routing key"),
        (" ".join(f"c{number}=pagerduty:secret" for number in range(101)), "at most 100"),
    ],
)
def test_a_wrong_entry_is_named_without_its_address(tmp_path, entry, words):
    with pytest.raises(SettingError, match=words) as caught:
        settings(tmp_path, CHANNELS=entry)
    assert "secret" not in str(caught.value)


def test_addresses_of_mail_are_checked(tmp_path):
    with pytest.raises(SettingError, match="a: after email: write e-mail addresses"):
        settings(tmp_path, CHANNELS="a=email:ana", **MAIL)
