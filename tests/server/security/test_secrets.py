"""A failing server with all secrets set: neither logs nor responses show one."""

from __future__ import annotations

import os
import re
import sqlite3
import time

import pytest
from sqlalchemy import text

SECRET = "s3cr3t-0f-th3-s3rv3r"
ENVIRON = {
    "MEMAGENT_SECRET_KEY": f"key-{SECRET}",
    "MEMAGENT_ADMIN_TOKEN": f"admin-{SECRET}",
    "MEMAGENT_SLACK_WEBHOOK_URL": f"http://127.0.0.1:9/services/{SECRET}",
    "MEMAGENT_SLACK_BOT_TOKEN": f"xoxb-{SECRET}",
    "MEMAGENT_SLACK_CHANNEL": "C1",
    "MEMAGENT_SLACK_API_URL": "http://127.0.0.1:9",
    "MEMAGENT_WEBHOOK_URL": f"http://127.0.0.1:9/{SECRET}?key={SECRET}",
    "MEMAGENT_WEBHOOK_SECRET": f"sign-{SECRET}",
    "MEMAGENT_SMTP_URL": f"smtp://ana:{SECRET}@127.0.0.1:9",
    "MEMAGENT_EMAIL_FROM": "a@example.org",
    "MEMAGENT_EMAIL_TO": "b@example.org",
    "MEMAGENT_PAGERDUTY_ROUTING_KEY": SECRET,
    "MEMAGENT_PAGERDUTY_URL": "http://127.0.0.1:9",
    "MEMAGENT_ALERTMANAGER_URL": f"http://ana:{SECRET}@127.0.0.1:9",
    "MEMAGENT_DISCORD_WEBHOOK_URL": f"http://127.0.0.1:9/{SECRET}",
    "MEMAGENT_TEAMS_WEBHOOK_URL": f"http://127.0.0.1:9/{SECRET}",
    "MEMAGENT_GRAFANA_TOKEN": SECRET,
    "MEMAGENT_ALLOW_LOCAL_WEBHOOKS": "1",
    "MEMAGENT_LOG_LEVEL": "debug",
}
RIGHT = {"authorization": f"Bearer admin-{SECRET}"}
CHANNELS = (
    "slack_bot",
    "slack_webhook",
    "webhook",
    "email",
    "pagerduty",
    "alertmanager",
    "discord",
    "teams",
)


def test_a_failing_server_shows_no_secret_and_forges_no_line(start_server):
    server = start_server(environ=ENVIRON)
    form = {"content_type": "application/x-www-form-urlencoded"}
    server.post("/api/v1/runs", {"run_id": "r", "config": {"api_token": "x"}}, **RIGHT)
    responses = [
        server.get("/api/v1/runs", authorization=f"Bearer wrong-{SECRET}"),
        server.get(f"/api/v1/runs?token={SECRET}", **RIGHT),
        server.post("/login", f"token=admin-{SECRET}".encode(), **form),
        server.post("/login", f"token=wrong-{SECRET}".encode(), **form),
        server.get("/runs/a%0Atime=2026-01-01T00:00:00Z%20level=error%20logger=forged", **RIGHT),
        *(server.post(f"/api/v1/channels/{name}/test", {}, **RIGHT) for name in CHANNELS),
        server.get("/settings/channels", accept="text/html", **RIGHT),
        server.get("/metrics", **RIGHT),
    ]
    with sqlite3.connect(server.data / "memagent.db") as connection:
        connection.execute("DROP TABLE predictions")
        connection.execute("DROP TABLE forecasts")
    responses += [
        server.get(path, accept="text/html", **RIGHT)
        for path in ("/", "/runs/r", "/api/v1/runs/r", "/metrics")
    ]
    assert {response.status for response in responses} >= {200, 401, 404, 502, 503}
    time.sleep(0.5)  # the worker fails on the missing tables, too
    assert server.stop() == 0
    log = server.errors
    assert log.count("trace") >= 3 and "no such table" in log
    assert [
        line
        for line in log.splitlines()
        if not re.match("time=20.* level=(debug|info|warning|error) logger=(?!forged)", line)
    ] == []
    assert "wrong-" not in log and SECRET not in log
    text = [response.body.decode() for response in responses if SECRET in response.body.decode()]
    assert text == []
    assert SECRET not in str([response.headers for response in responses]), (
        "a session's cookie holds no token"
    )


def test_a_database_error_logs_the_statement_without_its_values(
    sqlite_client, sqlite_database, caplog
):
    with sqlite_database.engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TRIGGER no BEFORE INSERT ON runs BEGIN SELECT RAISE(ABORT, 'the trigger'); END"
            )
        )
    run = {
        "run_id": "r",
        "name": SECRET,
        "config": {"url": f"https://ana:{SECRET}@far.example"},
        "tags": [SECRET],
    }
    assert sqlite_client.post("/api/v1/runs", json=run).status_code == 503
    assert "the trigger" in caplog.text and "INSERT INTO runs" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "arguments", [("serve", "--listen", "127.0.0.1:0"), ("db", "current"), ("token", "list")]
)
def test_an_unreachable_database_does_not_reveal_its_password(memagent_fork, arguments):
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("MEMAGENT_")
    }
    url = f"postgresql://ana:{SECRET}@127.0.0.1:1/none"
    environ |= {"MEMAGENT_DATABASE_URL": url, "MEMAGENT_SECRET_KEY": SECRET}
    done = memagent_fork.run("-m", "memagent", *arguments, env=environ)
    assert done.returncode == 1 and "127.0.0.1" in done.stderr
    assert SECRET not in done.stdout + done.stderr
