"""The audit log: changes are written for all routes, and kept within bounds."""

from __future__ import annotations

from memagent_server.http import credentials
from memagent_server.store import changes
from memagent_server.store.changes import add_change, list_changes


def rows_of(database):
    with database.read() as session:
        return [
            (one.name, one.method, one.route, one.subject, one.status)
            for one in list_changes(session, limit=100)
        ]


def token(app, scope):
    context = app.extensions["memagent"]
    with context.database.write() as session:
        return credentials.issue_token(session, context.settings, name="ci", scope=scope, now=1.0)[
            0
        ]


def test_changes_are_in_the_audit_log_without_their_bodies(app, database):
    headers = {"Authorization": f"Bearer {token(app, 'admin')}"}
    client = app.test_client()
    rules = {"rules": {"Secret": {"column": "loss", "test": "above"}}}
    assert (
        client.put("/api/v1/column-rules?project=p", json=rules, headers=headers).status_code == 200
    )
    assert client.get("/api/v1/runs", headers=headers).status_code == 200
    estimate = {"model": "gpt2", "batch": 1}
    assert client.post("/api/v1/estimate", json=estimate, headers=headers).status_code == 200
    large = {"project": "x" * 300_000}
    assert client.post("/settings", data=large, headers=headers).status_code == 413
    assert client.post("/api/v1/runs", json={"run_id": "r"}, headers=headers).status_code < 300
    assert client.delete("/api/v1/runs/r", headers=headers).status_code == 204
    assert client.delete("/api/v1/runs/x", headers=headers).status_code == 404
    assert rows_of(database) == [
        ("ci", "DELETE", "/api/v1/runs/<run_id>", "x", 404),
        ("ci", "DELETE", "/api/v1/runs/<run_id>", "r", 204),
        ("ci", "POST", "/settings", "", 413),
        ("ci", "PUT", "/api/v1/column-rules", "p", 200),
    ]
    listed = client.get("/api/v1/changes?limit=2", headers=headers).get_json()
    assert [one["subject"] for one in listed["changes"]] == ["x", "r"] and listed["next_cursor"]
    page = client.get("/settings/changes", headers=headers).text
    assert "/api/v1/runs/&lt;run_id&gt;" in page
    assert "Secret" not in page


def test_logins_and_logouts_are_in_the_audit_log_and_wrong_tokens_are_not(app, database):
    client, secrets = app.test_client(), [token(app, scope) for scope in ("admin", "ingest")]
    for secret in (*secrets, "unknown"):
        client.post("/login", data={"token": secret})
    client.post("/logout")
    client.post("/logout")
    assert rows_of(database) == [
        ("ci", "POST", "/logout", "", 303),
        ("ci", "POST", "/login", "", 403),
        ("ci", "POST", "/login", "", 303),
    ]


def test_the_log_is_bounded_in_time_and_rows(database, monkeypatch):
    monkeypatch.setattr(changes, "MAX_ROWS", 3)

    def add(now, subject):
        with database.write() as session:
            facts = {"name": "n" * 300, "email": None, "method": "PUT", "route": "/", "status": 200}
            add_change(session, **facts, subject=subject, now=now)

    add(0.0, "old")
    for number in range(5):
        add(changes.KEPT_S + 1.0 + number, str(number) * 300)
    assert [row[3][0] for row in rows_of(database)] == ["4", "3", "2"]
