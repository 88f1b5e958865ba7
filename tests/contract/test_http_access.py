"""Scopes of all routes: each route serves the scope that it requires and refuses others."""

from __future__ import annotations

import pytest

INGEST, READ, ADMIN, SERVER = "ingest", "read", "admin", "admin, and no limits"
DEMANDED = {
    "POST /api/v1/runs": INGEST,
    "POST /api/v1/runs/<run_id>/batches": INGEST,
    "POST /api/v1/runs/<run_id>/predictions": INGEST,
    "POST /api/v1/runs/<run_id>/snapshots": INGEST,
    "POST /api/v1/rehearsals": INGEST,
    "POST /api/v1/runs/<run_id>/finish": INGEST,
    "POST /api/v1/estimate": READ,
    "POST /api/v1/alerts/<int:alert_id>/<any(ack, snooze, 'false-alarm', undo):action>": READ,
    "POST /alerts/<int:alert_id>/say": READ,
    "POST /alerts/acknowledge": READ,
    "POST /compare": READ,
    "POST /api/v1/failures/<fingerprint>/<any(resolve, reopen):action>": READ,
    "POST /failures/<fingerprint>/<any(resolve, reopen):action>": READ,
    "DELETE /api/v1/runs/<run_id>": ADMIN,
    "PATCH /api/v1/runs/<run_id>": ADMIN,
    "PUT /api/v1/views": ADMIN,
    "DELETE /api/v1/views": ADMIN,
    "POST /views": ADMIN,
    "DELETE /api/v1/runs": ADMIN,
    "PATCH /api/v1/runs": ADMIN,
    "POST /runs/<run_id>": ADMIN,
    "POST /api/v1/runs/<run_id>/commands": ADMIN,
    "POST /runs/<run_id>/commands": ADMIN,
    "PUT /api/v1/runs/<run_id>/public-link": ADMIN,
    "DELETE /api/v1/runs/<run_id>/public-link": ADMIN,
    "POST /runs/<run_id>/public-link": ADMIN,
    "POST /runs": ADMIN,
    "PUT /api/v1/rules": ADMIN,
    "PUT /api/v1/column-rules": ADMIN,
    "POST /settings": ADMIN,
    "POST /settings/columns": ADMIN,
    "POST /api/v1/notifications/<int:notification_id>/retry": ADMIN,
    "POST /settings/channels": SERVER,
    "GET /settings/tokens": SERVER,
    "GET /settings/routing": SERVER,
    "GET /api/v1/routes": SERVER,
    "GET /api/v1/schedules": SERVER,
    "GET /settings/people": SERVER,
    "GET /settings/changes": SERVER,
    "GET /api/v1/changes": SERVER,
    "POST /api/v1/channels/<name>/test": SERVER,
}
"""Routes that aren't listed require READ for GET, and an unlimited admin token otherwise."""


def demanded_by(method, rule):
    return DEMANDED.get(f"{method} {rule.rule}", READ if method == "GET" else SERVER)


@pytest.fixture
def of(fill):
    fill("seen-too", "vision", "too")
    return fill("r", "vision", "marker")


def test_every_route_serves_its_scope_and_refuses_others(routes, ask, of, token_of):
    tokens = {scope: token_of(scope) for scope in (INGEST, READ, ADMIN)}
    for name, method, rule in routes:
        demanded = demanded_by(method, rule)
        allowed = {ADMIN} if demanded == SERVER else {demanded, ADMIN}
        for scope, token in tokens.items():
            response = ask(token, name, method, rule, of)
            is_refused = response.status_code == 403 and "This token has scope" in response.text
            assert is_refused == (scope not in allowed), (
                scope,
                method,
                rule.rule,
                response.status_code,
                response.text[:300],
            )
            assert response.status_code not in (401, 429), (scope, method, rule.rule)


def test_every_route_refuses_requests_without_a_token(routes, ask, of, token_of):
    token_of(ADMIN)
    for name, method, rule in routes:
        response = ask(None, name, method, rule, of)
        assert response.status_code in (401, 303), (method, rule.rule, response.status_code)
        assert "marker" not in response.text


def test_reading_again_adds_no_statement_to_the_cache(sqlite_app, routes, ask, of, token_of):
    token, client = token_of(ADMIN), sqlite_app.test_client()
    statements = sqlite_app.extensions["memagent"].database.engine._compiled_cache

    def read_all():
        for name, method, rule in routes:
            if method == "GET":
                ask(token, name, method, rule, of)
        assert client.get("/readyz").status_code == 200
        return len(statements)

    read_all()
    assert read_all() == read_all()


def test_server_wide_routes_refuse_project_tokens(routes, ask, of, token_of):
    token, refused = token_of(ADMIN, "vision"), set()
    for name, method, rule in routes:
        response = ask(token, name, method, rule, of)
        if response.status_code == 403 and "whole server" in response.text:
            refused.add(f"{method} {rule.rule}")
    assert refused == {
        f"{method} {rule.rule}" for _, method, rule in routes if demanded_by(method, rule) == SERVER
    }


def test_the_table_names_existing_routes_only(routes):
    assert set(DEMANDED) <= {f"{method} {rule.rule}" for _, method, rule in routes}
