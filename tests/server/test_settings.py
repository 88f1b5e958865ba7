"""The settings of channels: valid values, and errors that name the setting."""

from __future__ import annotations

import pytest

from memagent.errors import SettingError
from memagent_server.settings import GpuPrices, Settings


def settings(tmp_path, **variables: str) -> Settings:
    return Settings.from_environ(
        {
            "XDG_DATA_HOME": str(tmp_path),
            **{f"MEMAGENT_{name}": value for name, value in variables.items()},
        }
    )


def test_it_reads_every_setting(tmp_path):
    result = settings(
        tmp_path,
        SMTP_URL="smtps://ana:p%40ss@mail.example.org",
        EMAIL_FROM="memagent@example.org",
        EMAIL_TO="ana@example.org, bo@example.org",
        NOTIFY_SEVERITIES="pagerduty=critical, email=warning",
        ALLOW_LOCAL_WEBHOOKS="1",
        GPU_PRICES="H100=3.50, A100 = 1.80",
        CURRENCY="EUR",
    )
    assert result.gpu_prices == GpuPrices({"H100": 3.5, "A100": 1.8}, "EUR")
    assert result.email_to == ("ana@example.org", "bo@example.org") and result.allow_local_webhooks
    assert result.notify_severities == {"pagerduty": "critical", "email": "warning"}
    assert result.slack_api_url == "https://slack.com/api/"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SLACK_BOT_TOKEN": "xoxb"}, "needs MEMAGENT_SLACK_CHANNEL"),
        ({"SMTP_URL": "smtp://x", "EMAIL_FROM": "a@b"}, "needs MEMAGENT_EMAIL_TO"),
        ({"SMTP_URL": "smtp://x", "EMAIL_TO": "a@b"}, "needs MEMAGENT_EMAIL_FROM"),
        (
            {"SMTP_URL": "http://secret", "EMAIL_TO": "a@b", "EMAIL_FROM": "a@b"},
            "MEMAGENT_SMTP_URL must be an smtp:// or smtps:// address",
        ),
        (
            {"WEBHOOK_URL": "ftp://secret"},
            "MEMAGENT_WEBHOOK_URL must be an http:// or https:// address",
        ),
        ({"TEAMS_WEBHOOK_URL": "https://"}, "MEMAGENT_TEAMS_WEBHOOK_URL must be"),
        ({"ALERTMANAGER_URL": "http://x:port"}, "MEMAGENT_ALERTMANAGER_URL must be"),
        ({"ALLOW_LOCAL_WEBHOOKS": "yes"}, "write 1 or 0"),
        ({"EMAIL_TO": "ana"}, "not an e-mail address"),
        ({"GPU_PRICES": "H100"}, "write GPU=PRICE"),
        ({"GPU_PRICES": "=3"}, "write GPU=PRICE"),
        ({"GPU_PRICES": "H100=inf"}, "write GPU=PRICE"),
        ({"NOTIFY_SEVERITIES": "fax=critical"}, "a channel of slack_bot"),
        ({"NOTIFY_SEVERITIES": "email=loud"}, "a severity of note"),
    ],
)
def test_it_refuses_by_name_and_shows_no_secret(tmp_path, variables, words):
    with pytest.raises(SettingError, match=words) as caught:
        settings(tmp_path, **variables)
    assert "secret" not in str(caught.value)
