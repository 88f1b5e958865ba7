"""What a public link shows to a stranger: the run's name, figures and charts, and nothing else."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

HTML = {"Accept": "text/html"}
MARKER, OTHER = "qmarkerq", "qotherq"


@pytest.fixture
def stranger(sqlite_app, fill, token_of):
    """stranger(view): the answer to somebody without a token; MARKER is in all texts of the run."""
    fill("r", "vision", MARKER)
    fill("other", "vision", OTHER)
    client, headers = sqlite_app.test_client(), {"Authorization": f"Bearer {token_of('admin')}"}
    event = {"kind": f"kind_{MARKER}", "step": 2, "time_s": 2.0, "data": {}}
    batch = {"seq": 7, "events": [event]}
    assert client.post("/api/v1/runs/r/batches", json=batch, headers=headers).status_code == 200
    link = client.put("/api/v1/runs/r/public-link", json={}, headers=headers).get_json()
    path = urlsplit(link["url"]).path
    return lambda view="", **options: sqlite_app.test_client().get(f"{path}{view}", **options)


@pytest.mark.parametrize("view", ["", "/embed"])
def test_a_page_shows_the_name_of_the_run_and_no_other_text_of_it(stranger, view):
    page = stranger(view, headers=HTML)
    assert page.status_code == 200
    text = page.text.replace(f"card {MARKER}", "").replace(f"GPU-{MARKER}", "")
    for begin, end in (
        ("<title>", " ·"),
        (">", "</h1>"),
        (">", "</a></h1>"),
        ('data-title="', '"'),
    ):
        text = text.replace(f"{begin}{MARKER}{end}", "")
    for unknown in (MARKER, OTHER, "vision", 'method="post"', "/runs/", "/api/"):
        assert unknown not in text, unknown


def test_its_charts_are_those_of_the_run(stranger):
    series = stranger(f"/series?rank=0&device=GPU-{MARKER}").get_json()
    assert series["series"]["allocated_bytes"]["max"][-1] == 28 * 2**30
    assert stranger("/ranks?field=allocated_bytes").status_code == 200
    forecast = stranger("/forecast")
    assert forecast.status_code == 200 and MARKER not in forecast.text.replace(f"GPU-{MARKER}", "")
    assert stranger(f"/series?device=GPU-{OTHER}").get_json()["step"] == []


def test_other_sites_may_frame_the_chart_only(stranger):
    page, chart = stranger(headers=HTML), stranger("/embed", headers=HTML)
    assert page.headers["X-Frame-Options"] == "DENY"
    assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
    assert "X-Frame-Options" not in chart.headers
    assert "frame-ancestors *" in chart.headers["Content-Security-Policy"]
    assert "script-src 'self'" in chart.headers["Content-Security-Policy"]
    assert "noindex" in page.text and "noindex" in chart.text


def test_a_frame_shows_why_a_link_has_ended(sqlite_app):
    ended = sqlite_app.test_client().get("/public/x/embed", headers=HTML)
    assert ended.status_code == 404 and "Ask who sent it" in ended.text
    assert "<nav" not in ended.text and "All runs" not in ended.text
    assert "All runs" in sqlite_app.test_client().get("/runs/nobody", headers=HTML).text
    assert "X-Frame-Options" not in ended.headers


def test_a_link_opens_nothing_else(stranger):
    assert stranger(headers=HTML).status_code == 200
    for parameters in ("rank=0&device=GPU-" + OTHER, "attempt=1&device=other"):
        answer = stranger(f"/series?{parameters}")
        assert OTHER not in answer.text.replace(f"GPU-{OTHER}", ""), parameters
        chart = answer.get_json().get("series", {}).get("allocated_bytes", {"last": []})
        assert chart["last"] == [], parameters
    for view in ("/console", "/events", "/export", "/snapshots", "/suspects"):
        assert stranger(view).status_code == 404


def test_a_page_of_many_devices_changes_nothing_either(sqlite_app, token_of):
    client, headers = sqlite_app.test_client(), {"Authorization": f"Bearer {token_of('admin')}"}
    ids = [f"GPU-{number}" for number in range(9)]
    devices = [{"id": name, "kind": "cuda", "name": "card", "limit_bytes": 2**30} for name in ids]
    columns = {"step": [1], "time_s": [1.0], "allocated_bytes": [1]}
    batch = {"seq": 1, "chunks": [{"stream": name, "columns": columns} for name in ids]}
    client.post("/api/v1/runs", json={"run_id": "r", "devices": devices}, headers=headers)
    client.post("/api/v1/runs/r/batches", json=batch, headers=headers)
    link = client.put("/api/v1/runs/r/public-link", json={}, headers=headers).get_json()
    for url in (link["url"], link["embed_url"]):
        page = sqlite_app.test_client().get(urlsplit(url).path, headers=HTML).text
        assert '<select id="device"' in page and 'method="post"' not in page
