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
    for unknown in (MARKER, OTHER, "vision", "<form", "/runs/", "/api/"):
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


def test_a_link_opens_nothing_else(stranger, sqlite_app):
    assert stranger(headers=HTML).status_code == 200
    for path in ("/", "/runs/r", "/api/v1/runs/r", "/api/v1/runs/r/series", "/public/", "/public"):
        assert sqlite_app.test_client().get(path).status_code in (303, 401, 404)
    assert stranger("/console").status_code == 404
    assert stranger("/../../runs/r").status_code in (303, 401, 404)
