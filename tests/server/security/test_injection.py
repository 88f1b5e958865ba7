"""Names that scripts choose are plain text to SQL, pages, paths and templates."""

from __future__ import annotations

import base64
from html.parser import HTMLParser
from urllib.parse import quote

import pytest
from sqlalchemy import inspect

from memagent_server.store.models import Base

HTML = {"Accept": "text/html"}
HOSTILE = {
    "sql": "'; DROP TABLE runs; --",
    "sql, double": '" OR ""="',
    "like": "100%_\\",
    "markup": "<script>alert(1)</script>",
    "attribute": "\" onmouseover='alert(1)' x=\"",
    "template": "{{ 7 * 7 }}{% raw %}${7*7}",
    "path": "../../../../etc/passwd",
    "lines": "a\r\nSet-Cookie: x=y",
    "unicode": "\u202eevil\u2066 \U0001f999 e\u0301 \uffff",
    "address": "javascript:alert(1)",
}


@pytest.fixture
def hostile_client(client):
    """A client of a server with hostile text in every name: one run for each text, r0, r1 and
    so on.
    """
    for number, evil in enumerate(HOSTILE.values()):
        tell(client, f"r{number}", evil)
    return client


def tell(client, run_id, evil):
    run = dict.fromkeys(("name", "project", "user", "host"), evil)
    free = {"tags": [evil], "config": {evil: {evil: evil}}, "environment": {evil: evil}}
    device = {
        "id": "host",
        "kind": "host",
        "name": evil,
        "limit_bytes": 2**30,
        "limit_source": evil,
    }
    assert (
        client.post(
            "/api/v1/runs", json={"run_id": run_id, **run, **free, "devices": [device]}
        ).status_code
        == 201
    )
    chunks = [
        {
            "stream": "host",
            "columns": {
                "step": [1, 2],
                "time_s": [1.0, 2.0],
                "allocated_bytes": [1, 2],
                "phase_x_peak_bytes": [1, 2],
            },
        },
        {
            "stream": evil.replace("\r\n", ""),
            "columns": {"step": [1, 2], "time_s": [1.0, 2.0], "allocated_bytes": [1, 2]},
        },
    ]
    batch = {"seq": 0, "chunks": chunks, "events": [{"kind": "x", "data": {evil: evil}}]}
    assert client.post(f"/api/v1/runs/{run_id}/batches", json=batch).status_code == 200
    suspect = {
        "kind": "graph",
        "holder": evil,
        "file": evil,
        "line": 1,
        "function": evil,
        "bytes_per_step": 1.0,
        "confidence": 0.9,
        "fix": evil,
    }
    frames = {"frames": [f"{evil} ({evil}:1)"], "size_bytes": 1000, "blocks": 3}
    snapshot = {
        "device": "host", "step": 2, "time_s": 2.0, "method": "census", "why": evil, "suspects": [suspect], "stacks": [frames],
        "notes": [evil], "tensors": [{evil: evil}],
    }  # fmt: skip
    assert (
        client.post(f"/api/v1/runs/{run_id}/snapshots", json={"seq": 0, **snapshot}).status_code
        == 201
    )
    assert (
        client.post(
            f"/api/v1/runs/{run_id}/finish", json={"status": "failed", "error": evil}
        ).status_code
        == 200
    )


def test_text_is_returned_unchanged(hostile_client):
    for number, evil in enumerate(HOSTILE.values()):
        path, device = f"/api/v1/runs/r{number}", evil.replace("\r\n", "")
        run = hostile_client.get(path).get_json()
        assert (run["name"], run["project"], run["tags"], run["config"]) == (
            evil,
            evil,
            [evil],
            {evil: {evil: evil}},
        )
        (suspect,) = hostile_client.get(f"{path}/suspects").get_json()["suspects"]
        assert (suspect["file"], suspect["holder"]) == (evil, evil)
        series = hostile_client.get(
            f"{path}/series", query_string={"fields": "*", "device": device}
        ).get_json()["series"]
        assert series["allocated_bytes"]["last"] == [1, 2]


@pytest.mark.parametrize("name", [*HOSTILE.values(), "=1+1", "+a", "@a", "-a", "a\n"])
def test_column_names_cannot_be_spreadsheet_formulas(sqlite_client, name):
    sqlite_client.post("/api/v1/runs", json={"run_id": "r"})
    columns = {"step": [1], name: [0.5]}
    response = sqlite_client.post(
        "/api/v1/runs/r/batches",
        json={"seq": 0, "chunks": [{"stream": "scalars", "columns": columns}]},
    )
    assert response.status_code == 422


def test_searches_match_text_literally(hostile_client):
    hostile_client.post(
        "/api/v1/runs", json={"run_id": "other", "name": "something else", "project": "100 percent"}
    )
    for number, evil in enumerate(HOSTILE.values()):
        for query in ({"q": evil}, {"project": evil}):
            result = hostile_client.get("/api/v1/runs", query_string=query).get_json()["runs"]
            assert [run["id"] for run in result] == [f"r{number}"]


class Page(HTMLParser):
    """Collect the text of a page, and report scripts, handlers and addresses that would run
    code.
    """

    def __init__(self, source):
        super().__init__()
        self.text, self.complaints = "", []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "script" and not values.get("src", "").startswith("/static/"):
            self.complaints.append("script")
        for name, value in attributes:
            if name.startswith(("on", "style", "srcdoc")):
                self.complaints.append(name)
            if name in ("href", "src", "action", "formaction") and not value.startswith(
                ("/", "?", "#")
            ):
                self.complaints.append(f"{name}={value}")

    def handle_data(self, text):
        self.text += text


def test_no_page_renders_it_as_markup_or_template(hostile_client):
    runs = [f"/runs/r{number}" for number in range(len(HOSTILE))]
    named = [
        f"{path}{quote(evil)}"
        for evil in HOSTILE.values()
        for path in ("/?q=", "/", "/runs/", "/settings?project=")
    ]
    for path in ("/", "/alerts", "/settings", *runs, *named):
        response = hostile_client.get(path, headers=HTML)
        assert response.mimetype == "text/html" and "x=y" not in response.headers.getlist(
            "Set-Cookie"
        )
        page = Page(response.text)
        assert page.complaints == [], path
        expected = (
            HOSTILE.values()
            if path == "/"
            else [list(HOSTILE.values())[runs.index(path)]]
            if path in runs
            else []
        )
        assert [evil for evil in expected if evil not in page.text] == [], (
            "people see what the script said"
        )


@pytest.mark.parametrize(
    "query",
    ["sort=created_at;DROP TABLE runs", "status=running' OR 1=1", "limit=1;DROP", "limit=0x10", "cursor=' OR 1=1 --", "cursor=%00",
     "cursor=" + base64.urlsafe_b64encode(b"1.0 ' OR 1=1").decode() + "x", "q=%00", "project=%00", "limit=99999999999999999999"],
)  # fmt: skip
def test_invalid_parameters_are_refused(client, query):
    client.post("/api/v1/runs", json={"run_id": "r"})
    response = client.get(f"/api/v1/runs?{query}")
    assert (
        response.status_code == 422
        and response.get_json(force=True)["field"] == query.partition("=")[0]
    )


@pytest.mark.parametrize(
    "name", ["fields=' OR 1=1", "device=%' --", "rank=1 OR 1", "from=0;--", "points=1e3"]
)
def test_parameters_of_series_are_text_too(client, name):
    client.post("/api/v1/runs", json={"run_id": "r"})
    assert client.get(f"/api/v1/runs/r/series?{name}").status_code in (200, 404, 422)
    assert client.get("/api/v1/runs/r").status_code == 200


def test_no_table_was_dropped(hostile_client, database):
    with database.engine.connect() as connection:
        assert set(Base.metadata.tables) <= set(inspect(connection).get_table_names())


@pytest.mark.parametrize(
    "path",
    ["/static/../frame.py", "/static/%2e%2e/frame.py", "/static/..%2fframe.py", "/static//etc/passwd", "/static/..\\frame.py",
     "/static/vendor/../../frame.py", "/runs/..%2f..%2fetc%2fpasswd", "/api/v1/runs/../../../etc/passwd/series"],
)  # fmt: skip
def test_no_path_leaves_its_folder(sqlite_client, path):
    response = sqlite_client.get(path, follow_redirects=True)
    assert (
        response.status_code == 404
        and "Security-Policy" not in response.text
        and "root:" not in response.text
    )


@pytest.mark.parametrize(
    "run_id", ["../r", "a/b", "a b", "r;x", "r'", "r\n", "", "x" * 65, "<b>", "%00", "ü"]
)
def test_an_id_is_an_identifier(sqlite_client, run_id):
    assert sqlite_client.post("/api/v1/runs", json={"run_id": run_id}).status_code == 422
