"""The audit log: changes are written for all routes, and kept within bounds."""

from __future__ import annotations

from memagent_server.http import auth, credentials
from memagent_server.http.change_log import READING
from memagent_server.store import changes
from memagent_server.store.changes import add_change, list_changes
from memagent_server.web.change_text import TEXTS, describe, problem_of


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


def test_changes_are_in_the_audit_log(app, database):
    headers = {"Authorization": f"Bearer {token(app, 'admin')}"}
    client = app.test_client()
    rules = {"rules": {"Loss": {"column": "loss", "test": "above"}}}
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
    assert ">Deleted a run<" in page and "refused: 404 Not Found" in page
    assert "DELETE /api/v1/runs/&lt;run_id&gt;, status 404" in page
    assert "Loss.column</span> none → loss<" in page


def test_a_form_says_what_it_changed(app, database):
    headers = {"Authorization": f"Bearer {token(app, 'admin')}"}
    client = app.test_client()
    for form in ({"name": "Vision team"}, {"what": "remove", "route": "Vision team"}):
        client.post("/settings/routing", data=form, headers=headers)
    client.post("/settings/columns", data={"remove": "Loss", "project": "p"}, headers=headers)
    assert [subject for *_, subject, _ in rows_of(database)] == [
        "remove Loss p",
        "remove Vision team",
        "Vision team",
    ]


def test_every_route_that_is_logged_has_words_and_no_other(app):
    def is_logged(rule):
        view = app.view_functions[rule.endpoint]
        known = getattr(view, "memagent_operation", None)
        required = known.required if known else getattr(view, "memagent_required_scope", None)
        return rule.endpoint not in READING and not (required and required.scope == "ingest")

    changing = {
        (method, rule.rule)
        for rule in app.url_map.iter_rules()
        for method in rule.methods - {*auth.SAFE_METHODS}
        if is_logged(rule)
    }
    logins = {entry for entry in TEXTS if entry[0] == "GET"}
    assert changing | logins == TEXTS.keys()
    routes = {rule.rule for rule in app.url_map.iter_rules()}
    assert {route for _, route in logins} <= routes


def test_a_route_of_an_earlier_version_is_shown_as_it_is():
    assert describe("PUT", "/old", "a b") == ("PUT /old", "a b")
    assert [problem_of(status) for status in (303, 403, 499, 500)] == [
        "",
        "refused: 403 Forbidden",
        "refused: 499",
        "failed: 500 Internal Server Error",
    ]


def test_a_route_of_several_actions_has_words_for_each():
    routes = {
        "/alerts/<int:alert_id>/say": ("ack", "snooze", "false-alarm", "undo"),
        "/failures/<fingerprint>/<any(resolve, reopen):action>": ("resolve", "reopen"),
        "/runs/<run_id>/public-link": ("open", "revoke"),
        "/runs/<run_id>/commands": ("stop", "checkpoint"),
    }
    texts = [
        describe("POST", route, f"x {name}") for route, names in routes.items() for name in names
    ]
    assert len({text for text, _ in texts}) == 10
    assert {about for _, about in texts} == {"x"}


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


def values_of(client, headers):
    """The values of the newest change, as (name, old, new)."""
    newest = client.get("/api/v1/changes?limit=1", headers=headers).get_json()["changes"][0]
    return [tuple(value.values()) for value in newest["values"]]


def test_a_change_of_settings_says_the_values_before_and_after(app):
    headers = {"Authorization": f"Bearer {token(app, 'admin')}"}
    client = app.test_client()
    rules = {"rules": {"oom_forecast": {"is_on": False, "thresholds": {"critical_s": 300.0}}}}
    for sent, expected in (
        (rules, [("oom_forecast.is_on", "on", "off"), ("oom_forecast.critical_s", "120", "300")]),
        (rules, []),
        (
            {"rules": {"oom_forecast": None}},
            [("oom_forecast.is_on", "off", "on"), ("oom_forecast.critical_s", "300", "120")],
        ),
    ):
        assert client.put("/api/v1/rules", json=sent, headers=headers).status_code == 200
        assert values_of(client, headers) == expected
    schedule = {"schedules": {"slack": {"time_zone": "UTC", "daily": True}}}
    refused = client.put("/api/v1/schedules", json=schedule, headers=headers)
    assert refused.status_code == 422 and values_of(client, headers) == []


def test_a_column_rule_that_is_replaced_has_both_values(app):
    headers = {"Authorization": f"Bearer {token(app, 'admin')}"}
    client = app.test_client()
    for value in (1.0, 2.5):
        rules = {"rules": {"Loss": {"column": "loss", "test": "above", "value": value}}}
        answer = client.put("/api/v1/column-rules?project=p", json=rules, headers=headers)
        assert answer.get_json()["rules"][0]["value"] == value
    assert values_of(client, headers) == [("Loss.value", "1", "2.5")]


def test_routes_that_change_places_say_so(app):
    headers = {"Authorization": f"Bearer {token(app, 'admin')}"}
    client = app.test_client()
    routes = [{"name": "a", "projects": ["p"]}, {"name": "b", "projects": ["q"]}]
    for order in (routes, routes[::-1]):
        put = client.put("/api/v1/routes", json={"routes": order}, headers=headers)
        assert put.status_code == 200, put.text
    assert values_of(client, headers) == [("order", "a, b", "b, a")]


def test_a_changed_run_has_old_and_new_name_tags_and_notes(app, database):
    headers = {"Authorization": f"Bearer {token(app, 'admin')}"}
    client = app.test_client()
    for run_id in "rs":
        run = {"run_id": run_id, "tags": ["a"]}
        assert client.post("/api/v1/runs", json=run, headers=headers).status_code < 300
    edit = {"name": "new", "tags": ["a", "b"], "notes": "x" * 300}
    assert client.patch("/api/v1/runs/r", json=edit, headers=headers).status_code == 200
    name, tags, notes = values_of(client, headers)
    assert name == ("name", "r", "new") and tags == ("tags", "a", "a, b")
    assert notes == ("notes_characters", "0", "300"), "the log outlives a run and its notes"
    both = {"runs": ["r", "s"], "is_archived": True}
    assert client.patch("/api/v1/runs", json=both, headers=headers).status_code == 200
    assert values_of(client, headers) == [
        ("r.is_archived", "off", "on"),
        ("s.is_archived", "off", "on"),
    ]
