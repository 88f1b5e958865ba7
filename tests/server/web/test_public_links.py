"""Public links of runs: opened and revoked by who may change the run."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from memagent.units import DAY_S
from memagent_server.app import create_app
from memagent_server.http import rate_limits
from memagent_server.store.public_links import list_links
from memagent_server.web.rendering import REFRESH_HEADER
from memagent_server.web.shared_pages import EXTENSION, MAX_PAGES

HTML = {"Accept": "text/html"}
LINK = "/api/v1/runs/r/public-link"
VIEWS = ("", "/embed", "/series", "/ranks?field=peak_allocated_bytes", "/forecast")
REFRESH = {**HTML, REFRESH_HEADER: "1"}


@pytest.fixture
def shared(client):
    """Return the client, with a run."""
    assert client.post("/api/v1/runs", json={"run_id": "r", "name": "ViT"}).status_code == 201
    return client


def path_of(answer):
    return urlsplit(answer.get_json()["url"]).path


def test_a_link_opens_a_page_until_it_is_revoked(shared):
    assert shared.get(LINK).status_code == 404
    path = path_of(shared.put(LINK, json={}))
    assert path_of(shared.get(LINK)) == path == path_of(shared.put(LINK, json={"days": 7}))
    for view in ("", "/embed"):
        page = shared.get(f"{path}{view}", headers=HTML)
        assert page.status_code == 200 and "ViT" in page.text
    assert shared.get(f"{path}/series?device=scalars").status_code == 200
    assert shared.delete(LINK).status_code == 204
    for view in VIEWS:
        assert shared.get(f"{path}{view}").status_code == 404
    assert path_of(shared.put(LINK, json={})) != path


def test_a_link_ends_by_its_time_and_a_new_one_has_another_address(database, make_settings):
    now = [1e9]
    app = create_app(make_settings(database.url), database, clock=lambda: now[0])
    shared = app.test_client()
    shared.post("/api/v1/runs", json={"run_id": "r"})
    answer = shared.put(LINK, json={"days": 7})
    assert answer.get_json()["expires_at"] is not None
    path = path_of(answer)
    now[0] += 7 * DAY_S - 1
    assert shared.get(path).status_code == 200
    now[0] += 2
    for view in VIEWS:
        refused = shared.get(f"{path}{view}", headers=HTML)
        assert refused.status_code == 404 and "has expired" in refused.text
    assert shared.get(LINK).status_code == 404
    assert "Open a public link" in shared.get("/runs/r", headers=HTML).text
    with database.read() as session:
        assert list_links(session, now[0]) == []
    assert path_of(shared.put(LINK, json={})) != path


@pytest.mark.parametrize("view", ["", "/embed"])
def test_an_open_page_ends_with_its_link(shared, view):
    shared.post("/api/v1/runs/r/finish", json={"status": "completed"})
    path = path_of(shared.put(LINK, json={}))
    for _ in range(2):
        assert shared.get(f"{path}{view}", headers=REFRESH).status_code == 200
    shared.delete(LINK)
    assert shared.get(f"{path}{view}", headers=REFRESH).status_code == 404


def test_a_server_may_have_no_public_links(shared, database, make_settings):
    path = path_of(shared.put(LINK, json={}))
    settings = make_settings(database.url, has_public_links=False)
    closed = create_app(settings, database).test_client()
    assert closed.get(path).status_code == 404
    refused = closed.put(LINK, json={})
    assert refused.status_code == 403 and "MEMAGENT_PUBLIC_LINKS" in refused.get_json()["detail"]
    assert "public link" not in closed.get("/runs/r", headers=HTML).text.lower()


def test_strangers_evict_no_page_of_others(shared, app):
    path = path_of(shared.put(LINK, json={}))
    shared.get("/runs/r", headers=REFRESH)
    for number in range(MAX_PAGES + 1):
        shared.get(f"{path}?from={number}", headers=REFRESH)
    assert [key[0] for key in app.extensions[EXTENSION]._pages] == ["/runs/r?"]


def test_the_log_has_no_address(shared, caplog):
    path = path_of(shared.put(LINK, json={}))
    with caplog.at_level("DEBUG", "memagent.access"):
        for view in (*VIEWS, "/nothing/at/all"):
            shared.get(f"{path}{view}")
    assert "/public/<secret>/series" in caplog.text
    assert path.removeprefix("/public/") not in caplog.text


def test_deleting_a_run_deletes_its_link(shared):
    path = path_of(shared.put(LINK, json={}))
    assert shared.delete("/api/v1/runs/r").status_code == 204
    assert shared.get(path).status_code == 404


@pytest.mark.parametrize("secret", ["x", "InIi.AAAA", "é" * 300, "a.b.c"])
def test_a_forged_address_opens_nothing(shared, secret):
    shared.put(LINK, json={})
    answer = shared.get(f"/public/{secret}", headers=HTML)
    assert answer.status_code == 404 and "Ask who sent it" in answer.text


def test_an_unsigned_id_opens_nothing(shared, database):
    shared.put(LINK, json={})
    with database.read() as session:
        ((link, _),) = list_links(session, 0.0)
    assert shared.get(f"/public/{link.id}").status_code == 404


def test_refusals_are_one_sentence(shared):
    for body in ({"days": 0}, {"days": 4_000}, {"days": "7"}, {"until": 1}):
        answer = shared.put(LINK, json=body)
        (field,) = body
        assert answer.status_code == 422 and field in answer.get_json()["detail"]
    assert shared.put("/api/v1/runs/other/public-link", json={}).status_code == 404
    assert shared.get("/api/v1/runs/other/public-link").status_code == 404
    assert shared.delete("/api/v1/runs/other/public-link").status_code == 404
    for form in ({"what": "show"}, {"what": "open", "days": "8"}):
        assert shared.post("/runs/r/public-link", data=form).status_code == 422


def test_the_page_opens_and_revokes_it(shared):
    assert "Open a public link" in shared.get("/runs/r", headers=HTML).text
    answer = shared.post("/runs/r/public-link", data={"what": "open", "days": "30"})
    assert answer.headers["Location"] == "/runs/r?share=1#share"
    page = shared.get("/runs/r", headers=HTML).text
    url = shared.get(LINK).get_json()["url"]
    assert f"<code>{url}</code>" in page and f"iframe src=&#34;{url}/embed" in page.replace(
        '"', "&#34;"
    )
    tokens = shared.get("/settings/tokens", headers=HTML).text
    assert "Public links" in tokens and "ViT" in tokens
    shared.post("/runs/r/public-link", data={"what": "revoke"})
    assert "Open a public link" in shared.get("/runs/r", headers=HTML).text
    assert "Public links" not in shared.get("/settings/tokens", headers=HTML).text


def test_a_link_with_too_many_requests_asks_to_wait(sqlite_database, make_settings, monkeypatch):
    monkeypatch.setattr(rate_limits, "PUBLIC_REQUESTS_PER_S", 0.001)
    monkeypatch.setattr(rate_limits, "BURST_S", 3000.0)
    shared = create_app(make_settings(sqlite_database.url), sqlite_database).test_client()
    paths = []
    for run_id in ("r", "other"):
        assert shared.post("/api/v1/runs", json={"run_id": run_id}).status_code == 201
        paths.append(path_of(shared.put(f"/api/v1/runs/{run_id}/public-link", json={})))
    answers = [shared.get(f"{paths[0]}/forecast") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert 900 < int(answers[3].headers["Retry-After"]) <= 1000
    assert shared.get(f"{paths[1]}/forecast").status_code == 200
