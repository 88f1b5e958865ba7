"""Public links of runs: opened and revoked by who may change the run."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from memagent.units import DAY_S
from memagent_server.app import create_app
from memagent_server.store.public_links import list_links

HTML = {"Accept": "text/html"}
LINK = "/api/v1/runs/r/public-link"


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
    for view in ("", "/embed", "/series", "/ranks?field=peak_allocated_bytes", "/forecast"):
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
    refused = shared.get(path, headers=HTML)
    assert refused.status_code == 404 and "has expired" in refused.text
    with database.read() as session:
        assert list_links(session, now[0]) == []
    assert path_of(shared.put(LINK, json={})) != path


def test_a_link_goes_with_its_run(shared):
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
        assert shared.put(LINK, json=body).status_code == 422
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
