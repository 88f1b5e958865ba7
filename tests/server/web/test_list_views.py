"""Saved views: by the API and the page, of projects, with scopes and concurrent edits."""

from __future__ import annotations

import re
import threading
from html import unescape
from urllib.parse import quote

import pytest

import memagent
from memagent_server.http.credentials import token_hash
from memagent_server.store import run_views
from memagent_server.store.errors import ConflictError
from memagent_server.store.run_views import list_views, save_view
from memagent_server.store.tokens import create_token

HTML = {"Accept": "text/html"}
QUERY = {"where": 'config.lr < 1 and name != "x"', "sort": "-config.lr", "columns": "config.lr"}


def save(client, name="best", project="*", query=None, **rest):
    body = {"name": name, "project": project, "query": QUERY if query is None else query, **rest}
    return client.put("/api/v1/views", json=body)


def views(client, **query):
    listed = client.get("/api/v1/views", query_string=query).json["views"]
    return [(view["project"], view["name"]) for view in listed]


def test_a_view_is_saved_replaced_listed_and_deleted(client):
    first = save(client)
    assert first.status_code == 200 and first.json["query"] == QUERY
    save(client, "own", "nlp")
    save(client, "other", "vision")
    assert views(client, project="nlp") == [("*", "best"), ("nlp", "own")]
    assert len(views(client)) == 3
    save(client, query={"sort": "name"})
    assert client.get("/api/v1/views?project=nlp").json["views"][0]["query"] == {"sort": "name"}
    assert client.delete("/api/v1/views?name=own&project=nlp").status_code == 204
    assert client.delete("/api/v1/views?name=own&project=nlp").status_code == 404
    assert views(client, project="nlp") == [("*", "best")]


@pytest.mark.parametrize(
    "name", ["runs", "../settings", "ä 😀", "'; DROP TABLE run_views; --", "%s"]
)
def test_a_name_is_any_text(client, name):
    client.post("/api/v1/runs", json={"run_id": "a"})
    assert save(client, name).status_code == 200
    assert views(client) == [("*", name)]
    page = client.get("/", headers=HTML).text
    shown = re.search(r'<a class="tag" href="([^"]*)"[^>]*>([^<]*)<', page)
    assert unescape(shown[2]) == name
    assert client.get(unescape(shown[1]), headers=HTML).status_code == 200
    assert client.delete("/api/v1/views", query_string={"name": name}).status_code == 204


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"query": {"where": "lr < 1"}}, "where"),
        ({"query": {"columns": "lr"}}, "columns"),
        ({"query": {"group": "lr"}}, "group"),
        ({"query": {"group": "name,user,host,status"}}, "query"),
        ({"query": {"sort": "-lrate"}}, "sort"),
        ({"query": {"cursor": "x"}}, None),
        ({"query": {"status": "dead"}}, None),
    ],
)
def test_a_view_that_would_show_nothing_is_refused(sqlite_client, change, field):
    answer = save(sqlite_client, **change)
    assert answer.status_code == 422
    assert field is None or answer.json["field"] == field
    assert views(sqlite_client) == []


def test_of_two_who_change_a_view_the_later_is_told(client):
    saved_at = save(client).json["saved_at"]
    theirs = save(client, query={}, if_saved_at=saved_at)
    assert theirs.status_code == 200
    if theirs.json["saved_at"] != saved_at:
        assert save(client, if_saved_at=saved_at).status_code == 409
    assert save(client, if_saved_at="").status_code == 409, "there is one"
    assert save(client, "gone", if_saved_at=saved_at).status_code == 409, "there is none"
    assert client.get("/api/v1/views").json["views"][0]["query"] == {}


def test_of_several_who_save_a_new_view_one_wins(database):
    results = []

    def one(number):
        try:
            with database.write() as session:
                save_view(
                    session, project="*", name="n", query={}, by=str(number), now=float(number),
                    if_saved_at="",
                )  # fmt: skip
            results.append(number)
        except ConflictError:
            pass

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as session:
        (view,) = list_views(session)
    assert [str(number) for number in results] == [view.saved_by]


def test_a_project_has_a_bounded_number(client, monkeypatch):
    monkeypatch.setattr(run_views, "MAX_VIEWS", 2)
    assert [save(client, name).status_code for name in "abca"] == [200, 200, 409, 200]
    assert save(client, "a", "nlp").status_code == 200


def test_tokens_see_and_change_what_is_theirs(app, client):
    server = app.extensions["memagent"]
    save(client, "all"), save(client, "mine", "nlp"), save(client, "theirs", "vision")
    with server.database.write() as session:
        for name, scope in (("reader", "read"), ("editor", "admin")):
            create_token(
                session, name=name, scope=scope, token_hash=token_hash(server.settings, name),
                now=1.0, projects=("nlp",),
            )  # fmt: skip
    reader, editor = ({"Authorization": f"Bearer {name}"} for name in ("reader", "editor"))

    def ask(method, headers, path="/api/v1/views", **options):
        return getattr(client, method)(path, headers=headers, **options)

    for headers in (reader, editor):
        names = [view["name"] for view in ask("get", headers).json["views"]]
        assert names == ["all", "mine"]
    body = {"name": "new", "project": "nlp", "query": {}}
    assert ask("put", reader, json=body).status_code == 403
    assert ask("put", editor, json=body).json["saved_by"] == "editor"
    for project in ("*", "vision"):
        assert ask("put", editor, json={**body, "project": project}).status_code == 403
        path = f"/api/v1/views?name=theirs&project={quote(project)}"
        assert ask("delete", editor, path).status_code == 403
    with server.database.read() as session:
        assert len(list_views(session)) == 4


def test_the_page_saves_shows_and_deletes_the_list_that_it_shows(client):
    client.post("/api/v1/runs", json={"run_id": "a", "config": {"lr": 0.5}})
    address = "/?where=config.lr+%3C+1&sort=-config.lr&columns=config.lr"
    page = client.get(address, headers=HTML).text
    assert "Save view" in page and "Save view" not in client.get("/", headers=HTML).text
    nothing = client.get("/?status=oom&project=none", headers=HTML).text
    assert "Save view" in nothing and '<form id="view"' in nothing
    hidden = dict(re.findall(r'name="(list-[a-z]+)" value="([^"]*)"', page))
    hidden = {name: unescape(value) for name, value in hidden.items()}
    form = {"name": "low <b>", "next": address, **hidden}
    assert client.post("/views", data=form, headers=HTML).location == address
    assert client.post("/views", data=form, headers=HTML).status_code == 409
    assert client.post("/views", data={**form, "name": " "}, headers=HTML).status_code == 422
    page = client.get(address, headers=HTML).text
    assert "low &lt;b&gt;</a>" in page and 'aria-current="page" title="All projects' in page
    assert "Delete this view" in page
    client.post("/views", data={"what": "delete", "name": "low <b>", "next": "/"}, headers=HTML)
    assert views(client) == []


def test_python_lists_and_saves_views(start_server):
    server = start_server()
    for source in (server.url, server.database_url):
        with memagent.Api(source) as api:
            assert api.save_view("best", {"sort": "scalar.loss"}, project="p")["name"] == "best"
            assert [view["query"] for view in api.views("p")] == [{"sort": "scalar.loss"}]
            assert api.views("q") == []
