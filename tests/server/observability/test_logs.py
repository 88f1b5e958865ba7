"""The log has one line per event and no secrets."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from memagent_server.observability.logs import FIELDS, MAX_MESSAGE_LENGTH, LineFormatter, secrets_of


def record(message, *arguments, error=None, **fields):
    entry = logging.LogRecord("memagent.test", logging.INFO, __file__, 1, message, arguments, error)
    entry.created = 1_767_225_600.25
    setattr(entry, FIELDS, fields)
    return entry


def test_it_writes_logfmt():
    line = LineFormatter("logfmt").format(
        record("a run %s", "r", status=200, token=None, name="two words")
    )
    assert line == (
        'time=2026-01-01T00:00:00.250Z level=info logger=memagent.test message="a run r" status=200 name="two words"'
    )


def test_it_writes_json():
    line = LineFormatter("json").format(record("a run %s", "r", status=200))
    assert json.loads(line) == {
        "time": "2026-01-01T00:00:00.250Z", "level": "info", "logger": "memagent.test", "message": "a run r", "status": 200
    }  # fmt: skip


@pytest.mark.parametrize("style", ["logfmt", "json"])
@pytest.mark.parametrize(
    "text", ["a\nlevel=error", "a\r\nb", "a\u2028b\x85c", "\x1b[31m", 'quote " here', "NUL \0"]
)
def test_every_record_is_one_line(style, text):
    try:
        raise ValueError(text)
    except ValueError:
        line = LineFormatter(style).format(
            record("about %s", text, error=sys.exc_info(), name=text)
        )
    assert len(line.splitlines()) == 1
    assert all(" " <= character <= "~" for character in line)
    assert "Traceback" in line


@pytest.mark.parametrize("style", ["logfmt", "json"])
def test_a_message_is_cut_after_its_secrets_are_masked(style):
    secret = "s3cret" * 3
    path = "/" + "\x01" * (MAX_MESSAGE_LENGTH - 15) + secret
    line = LineFormatter(style, (secret,)).format(record("GET %s", path + "\x01" * 400_000))
    assert len(line) < 7 * MAX_MESSAGE_LENGTH
    assert "s3cret" not in line


def test_it_masks_secrets_of_the_settings(make_settings):
    settings = make_settings(
        "postgresql+psycopg://ana:p4ssw0rd-of-db@db.example/memagent",
        admin_token="the admin's own",
        webhook_url="https://hooks.example/services/T0/very-secret-path",
        slack_bot_token="xoxb-1",
    )
    line = LineFormatter("logfmt", secrets_of(settings)).format(
        record(
            "%s %s %s %s",
            settings.database_url,
            settings.webhook_url,
            "quoted: very-secret-path",
            settings.secret_key,
            token=settings.admin_token,
        )
    )
    for secret in ("p4ssw0rd", "very-secret-path", "the admin's own", settings.secret_key):
        assert secret not in line
    assert "ana:[hidden]@db.example/memagent" in line
