"""A token of some projects: no route of any scope shows or changes a run of another project.

The routes are read from the application, so new ones are included.
"""

from __future__ import annotations

import re
from itertools import product

import pytest
from sqlalchemy import inspect, select

from memagent_server.store.models import Base
from memagent_server.store.project_scope import SHARED_TABLES

HIDDEN, SEEN = "hidden-marker", "seen-marker"
SCOPES = ("ingest", "read", "admin")
MAY_GO_ELSEWHERE = {"post_test"}
"""Routes that know nothing of any run, but only of the whole server."""


@pytest.fixture
def server(sqlite_app, fill, token_of):
    """Return an application with a run `hidden` of `secret`, and `seen`, `seen-too` of `vision`."""
    hidden, visible = fill("hidden", "secret", HIDDEN), fill("seen", "vision", SEEN)
    fill("seen-too", "vision", SEEN + "-too")
    sqlite_app.hidden, sqlite_app.visible = hidden, visible
    sqlite_app.tokens = {scope: token_of(scope, "vision", "other") for scope in SCOPES} | {
        "all": token_of("admin")
    }
    return sqlite_app


def rows(app, run_id):
    """All that the database holds of a run, table by table."""
    database = app.extensions["memagent"].database
    with database.engine.connect() as connection:
        return {
            table.name: sorted(
                map(str, connection.execute(select(table).where(table.c.run_id == run_id)))
            )
            for table in Base.metadata.sorted_tables
            if "run_id" in table.c
        } | {
            "runs": str(
                connection.execute(
                    select(Base.metadata.tables["runs"]).where(
                        Base.metadata.tables["runs"].c.id == run_id
                    )
                ).all()
            )
        }


def test_no_route_shows_or_changes_another_projects_run(server, routes, ask):
    before = rows(server, "hidden")
    for scope, (name, method, rule) in product(SCOPES, routes):
        response = ask(server.tokens[scope], name, method, rule, server.hidden)
        where = (scope, method, rule.rule, response.status_code)
        assert HIDDEN.encode() not in response.data, where
        assert response.status_code < 500, where
        if "<" in rule.rule and rule.rule.startswith("/api") and name not in MAY_GO_ELSEWHERE:
            assert response.status_code in (403, 404), where
    assert rows(server, "hidden") == before


def test_the_same_routes_serve_runs_of_the_tokens_project(server, routes, ask):
    """Delete last. For runs of its projects, a token gets the responses of an unlimited one."""
    ordered = sorted(
        (route for route in routes if route[0] != "delete_runs"),  # the next test deletes by it
        key=lambda route: (route[1] == "DELETE", route[0] in ("post_finish", "delete_one_run")),
    )
    for name, method, rule in ordered:
        response = ask(server.tokens["admin"], name, method, rule, server.visible)
        allowed = response.status_code < 400 or (
            response.status_code == 403 and "whole server" in response.text
        )
        assert allowed, (method, rule.rule, response.status_code, response.text[:500])
        if method == "GET" and "<run_id>" in rule.rule and rule.rule.startswith("/api"):
            whole = ask(server.tokens["all"], name, method, rule, server.visible)
            assert response.data == whole.data, rule.rule


def test_a_token_deletes_runs_of_its_projects_only(server, routes, ask):
    ((name, method, rule),) = [route for route in routes if route[0] == "delete_runs"]
    for run, status in ((server.hidden, 404), (server.visible, 204)):
        assert ask(server.tokens["admin"], name, method, rule, run).status_code == status


def test_lists_hold_the_tokens_projects_only(server):
    def listed(path, token):
        response = server.test_client().get(
            f"/api/v1/{path}", headers={"Authorization": f"Bearer {server.tokens[token]}"}
        )
        return {item.get("run_id") or item["id"] for item in response.get_json()[path]}

    for path in ("runs", "alerts", "notifications"):
        assert listed(path, "read") == {"seen", "seen-too"}
        assert listed(path, "all") == {"seen", "seen-too", "hidden"}


def test_a_run_cannot_be_created_in_or_moved_to_another_project(server):
    def start(scope, **body):
        headers = {"Authorization": f"Bearer {server.tokens[scope]}"}
        response = server.test_client().post("/api/v1/runs", json=body, headers=headers)
        return response.status_code, response.get_json(force=True)

    for scope in ("ingest", "admin"):
        new = f"new-{scope}"
        assert start(scope, run_id=new, project="secret")[0] == 403
        status, problem = start(scope, run_id=new)
        refusal = "the projects vision, other and cannot write to 'default'"
        assert status == 403 and refusal in problem["detail"]
        assert start(scope, run_id="hidden", project="vision")[0] == 409
        assert start(scope, run_id="seen", project="secret")[0] == 403
        assert start(scope, run_id=new, project="other")[0] == 201


def test_rules_for_all_projects_are_read_only(server):
    client = server.test_client()
    limited, whole = (
        {"Authorization": f"Bearer {server.tokens[name]}"} for name in ("admin", "all")
    )
    off = {"rules": {"leak": {"is_on": False}}}
    assert client.put("/api/v1/rules", json=off, headers=limited).status_code == 403
    assert client.put("/api/v1/rules", json=off, headers=whole).status_code == 200
    response = client.get("/api/v1/rules?project=vision", headers=limited).get_json()["rules"][
        "leak"
    ]
    assert response["is_on"] is False
    assert (
        client.put(
            "/api/v1/rules?project=vision", json={"rules": {"leak": None}}, headers=limited
        ).status_code
        == 200
    )


def test_metrics_cover_the_tokens_projects_only(server):
    def value(token, name):
        page = (
            server.test_client()
            .get("/metrics", headers={"Authorization": f"Bearer {server.tokens[token]}"})
            .text
        )
        return sum(
            float(line.rpartition(" ")[2])
            for line in page.splitlines()
            if re.match(rf"{name}[{{ ]", line)
        )

    for name, limited, whole in (
        ("memagent_runs", 2, 3),
        ("memagent_ingested_samples_total", 10, 15),
    ):
        assert (value("read", name), value("all", name)) == (limited, whole)


def test_a_browser_session_sees_what_its_token_sees(server):
    client = server.test_client()
    assert client.post("/login", data={"token": server.tokens["read"]}).status_code == 303
    page = client.get("/", headers={"Accept": "text/html"}).text
    assert SEEN in page and HIDDEN not in page
    assert client.get("/runs/hidden", headers={"Accept": "text/html"}).status_code == 404


def test_every_table_is_scoped_to_a_project_or_to_the_server():
    """A table that leads to no project is the server's: list here who may see it."""
    leading = ("project", "run_id", "stream_id", "alert_id")
    own = {
        model
        for model in (m.class_ for m in Base.registry.mappers)
        if not set(leading) & set(inspect(model).columns.keys())
    }
    assert own - set(SHARED_TABLES) == {
        model
        for model in own
        if model.__name__
        in (
            "TokenRow",
            "ChangeRow",
            "EndedSessionRow",
            "PersonRow",
            "RouteRow",
            "ChannelScheduleRow",
            "DigestRow",
            "WorkerRow",
            "ShardRow",
        )
    }
