"""Pages as HTML: content, caching, and escaping."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace

import pytest

from memagent.units import GIB
from memagent_server.store.models import (
    AlertRow,
    ForecastRow,
    IncidentRow,
    StreamRow,
    TransitionRow,
)
from memagent_server.web import rendering

MARKUP = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def start(client, run_id="r", **changes):
    devices = [{"id": "host", "kind": "host", "name": "host", "limit_bytes": 8 * GIB}]
    message = {
        "run_id": run_id,
        "name": "gpt small",
        "project": "nlp",
        "user": "ana",
        "host": "box",
        "devices": devices,
        **changes,
    }
    assert client.post("/api/v1/runs", json=message).status_code in (200, 201)


def sample(client, run_id="r", rank=0, stream="host", seq=0, **columns):
    columns = columns or {
        "allocated_bytes": [GIB, 2 * GIB],
        "peak_allocated_bytes": [3 * GIB, 3 * GIB],
    }
    steps = list(range(1, 1 + len(next(iter(columns.values())))))
    chunk = {
        "stream": stream,
        "columns": {"step": steps, "time_s": [1.0 * step for step in steps], **columns},
    }
    response = client.post(
        f"/api/v1/runs/{run_id}/batches", json={"rank": rank, "seq": seq, "chunks": [chunk]}
    )
    assert response.status_code == 200, response.get_json()


def page(client, path, **options):
    response = client.get(path, headers=HTML, **options)
    assert response.mimetype == "text/html"
    return response.get_data(as_text=True)


def text_of(html):
    """Return the text of a page, with spaces collapsed."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def warn(database, run_id="r", **changes):
    figures = {
        "step": 2, "level": "warning", "oom_probability": 0.9, "cause": "leak", "eta_step": 402.0, "eta_low": 300.0, "eta_high": 500.0,
        "eta_s": 1500.0, "used_bytes": 2 * GIB, "limit_bytes": 8 * GIB, "growth_bytes_per_step": 1000.0, "growing_since_step": 1,
    }  # fmt: skip
    with database.write() as session:
        stream = session.query(StreamRow).filter_by(run_id=run_id).first()
        session.add(
            ForecastRow(run_id=run_id, stream_id=stream.id, at=1.0, **{**figures, **changes})
        )


def alarm(database, summary="it leaks", reason="because", run_id="r", state="firing"):
    with database.write() as session:
        incident = IncidentRow(
            run_id=run_id, rule="oom_forecast", severity="warning", state=state, opened_at=1.0, fired_at=1.0, updated_at=1.0
        )  # fmt: skip
        session.add(incident)
        session.flush()
        alert = AlertRow(
            run_id=run_id, incident_id=incident.id, rule="oom_forecast", severity="warning", state=state, opened_at=1.0, updated_at=1.0,
            first_step=1, step=2, summary=summary,
        )  # fmt: skip
        session.add(alert)
        session.flush()
        session.add(
            TransitionRow(
                alert_id=alert.id,
                at=1.0,
                step=2,
                from_state="pending",
                to_state="firing",
                severity="warning",
                reason=reason,
            )
        )


def test_the_first_visit_shows_the_lines_to_paste(client):
    text = text_of(page(client, "/"))
    assert "import memagent" in text
    assert "run = memagent.attach(model, optimizer)" in text
    assert "MEMAGENT_SERVER=http://127.0.0.1:8420 python train.py" in text
    assert "MEMAGENT_TOKEN" not in text


def test_each_run_is_a_row(app, client):
    start(client, total_steps=500, tags=["sweep-4"])
    sample(client)
    warn(app.extensions["memagent"].database)
    text = text_of(page(client, "/"))
    for words in (
        "running",
        "gpt small",
        "nlp",
        "sweep-4",
        "ana on box",
        "2 of 500",
        "3.00 of 8.00 GiB",
        "~400 steps",
    ):
        assert words in text
    assert "Waiting for the first run" not in text


def test_the_list_is_searched_and_filtered(client):
    start(client, "a", name="first")
    start(client, "b", name="second", project="vision")
    client.post("/api/v1/runs/b/finish", json={"status": "completed"})

    def names(path):
        return [name for name in ("first", "second") if f">{name}</a>" in page(client, path)]

    assert names("/") == ["first", "second"]
    assert names("/?q=fir") == ["first"]
    assert names("/?status=completed") == ["second"]
    assert names("/?project=vision") == ["second"]
    assert "No runs match" in page(client, "/?q=third")
    assert client.get("/?status=dead", headers=HTML).status_code == 422


def test_the_list_has_pages_that_keep_the_search(sqlite_client):
    for number in range(51):
        start(sqlite_client, f"r{number:02}", name=f"number {number:02}")
    first = page(sqlite_client, "/?q=number")
    older = re.search(r'rel="next" href="([^"]+)"', first)[1].replace("&amp;", "&")
    assert "q=number" in older
    assert "number 00" not in first
    second = page(sqlite_client, older)
    assert "number 00" in second
    assert "← Newest" in second


def test_a_run_page_shows_the_forecast_with_cause_and_advice(app, client):
    start(client)
    sample(client)
    warn(app.extensions["memagent"].database)
    text = text_of(page(client, "/runs/r"))
    assert "Runs out of memory in about 400 steps (25 min)" in text
    assert "Likely cause: leak" in text
    assert "loss.item()" in text


def test_the_page_of_an_oom_run_shows_the_lead_time_of_the_warning(app, client):
    start(client)
    sample(client)
    warn(app.extensions["memagent"].database)
    client.post(
        "/api/v1/runs/r/finish",
        json={"status": "oom", "step": 312, "error": "OutOfMemoryError: no"},
    )
    text = text_of(page(client, "/runs/r"))
    assert "Out of memory in step 313" in text
    assert "First warning 311 steps earlier, at step 2." in text
    assert "OutOfMemoryError: no" in text


def test_warnings_of_an_earlier_launch_are_not_counted(app, client):
    start(client)
    sample(client)
    warn(app.extensions["memagent"].database)
    start(client, attempt=1)
    client.post("/api/v1/runs/r/finish", json={"status": "oom", "step": 9, "attempt": 1})
    assert "There was no warning." in text_of(page(client, "/runs/r"))


def test_a_run_page_shows_predicted_and_observed_memory(client):
    start(client)
    sample(client, allocated_bytes=[3 * GIB], parameters_bytes=[2 * GIB])
    prediction = {
        "method": "formula",
        "peak_allocated_bytes": GIB,
        "components": {"parameters": GIB},
    }
    client.post("/api/v1/runs/r/predictions", json=prediction)
    text = text_of(page(client, "/runs/r"))
    assert (
        "parameters 1.00 GiB 2.00 GiB +1.00 GiB Likely: there is a second copy of the weights: fp32 master"
        in text
    )
    assert "allocated 1.00 GiB 3.00 GiB +2.00 GiB" in text


def test_a_run_page_without_samples_waits(client):
    start(client, devices=[])
    text = text_of(page(client, "/runs/r"))
    assert "Waiting for the first sample" in text
    assert "The chart appears with the first sample." in text


def test_an_ended_run_of_scalars_only_shows_them_without_a_memory_chart(client):
    start(client, devices=[])
    chunk = {"stream": "scalars", "columns": {"step": [0, 9], "time_s": [1.0, 2.0], "loss": [2, 1]}}
    client.post("/api/v1/runs/r/batches", json={"seq": 0, "chunks": [chunk]})
    waiting = page(client, "/runs/r")
    client.post("/api/v1/runs/r/finish", json={"status": "completed", "step": 9})
    answer = page(client, "/runs/r")
    memory = '<section class="card" aria-labelledby="memory-title"'
    assert f"{memory}>" in waiting and f"{memory} hidden>" in answer
    assert "Completed at step 9" in answer and "No memory was recorded." in answer
    facts = re.search(r"id=.chart-facts.*data-facts='([^']*)'", answer)
    assert json.loads(facts[1])["device"] == "scalars"


def test_ranks_are_selected_by_address(client):
    for rank in (0, 1):
        start(client, rank=rank, world_size=2)
        sample(client, rank=rank, allocated_bytes=[(rank + 1) * GIB])
    assert "Rank 1 on host: 1 samples" in text_of(page(client, "/runs/r"))  # the fuller one
    assert "Rank 0 on host: 1 samples" in text_of(page(client, "/runs/r?rank=0&device=host"))
    assert client.get("/runs/r?rank=x", headers=HTML).status_code == 422


def test_many_ranks_become_a_select_box(sqlite_client):
    for rank in range(10):
        start(sqlite_client, rank=rank, world_size=10)
        sample(sqlite_client, rank=rank)
    html = page(sqlite_client, "/runs/r?rank=7")
    assert '<option value="7" selected>' in html


def test_alerts_are_listed_and_counted_in_the_navigation(app, client):
    assert "No open alerts" in page(client, "/alerts")
    assert "No alerts yet" in page(client, "/alerts?state=ended")
    start(client)
    sample(client)
    alarm(app.extensions["memagent"].database)
    html = page(client, "/alerts?state=open")
    assert "it leaks" in html
    assert "because" in html
    assert 'title="1 open, not acknowledged"' in html
    assert 'href="/runs/r"' in html
    assert "No alerts in this state" in page(client, "/alerts?state=averted")
    assert "it leaks" in page(client, "/runs/r")


def test_unknown_runs_and_pages_are_html_errors(client):
    for path in ("/runs/nope", "/nowhere"):
        response = client.get(path, headers=HTML)
        assert (response.status_code, response.mimetype) == (404, "text/html")
        assert "<h1>Not found</h1>" in response.get_data(as_text=True)
        assert "All runs" in response.get_data(as_text=True)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/runs/r",
        "/compare?runs=r,s",
        "/alerts",
        "/?q=%3Cscript%3Ealert(1)%3C/script%3E",
        "/%3Cscript%3Ealert(1)%3C/script%3E",
    ],
)
def test_untrusted_text_never_becomes_markup(app, client, path):
    device = {
        "id": "host",
        "kind": "host",
        "name": MARKUP,
        "limit_bytes": GIB,
        "limit_source": MARKUP,
    }
    words = dict.fromkeys(("name", "project", "user", "host"), MARKUP)
    config = {"tags": [MARKUP], "config": {MARKUP: [MARKUP]}, "environment": {MARKUP: MARKUP}}
    start(client, devices=[device], **words, **config)
    start(client, "s")
    sample(client)
    client.post(
        "/api/v1/runs/r/batches",
        json={"seq": 1, "events": [{"kind": "x", "data": {MARKUP: MARKUP}}]},
    )
    client.post("/api/v1/runs/r/finish", json={"status": "failed", "error": MARKUP})
    alarm(app.extensions["memagent"].database, MARKUP, MARKUP)
    html = page(client, path)
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    facts = re.search(r"data-facts='([^']*)'", html)
    assert (facts is not None) == path.startswith(("/runs/", "/compare"))


AT_REST = ("/", "/alerts", "/alerts?state=ended", "/runs/r")


def test_an_unchanged_page_is_an_empty_304(sqlite_client):
    start(sqlite_client)
    sqlite_client.post("/api/v1/runs/r/finish", json={"status": "completed"})
    first = sqlite_client.get("/alerts", headers=HTML)
    again = sqlite_client.get("/alerts", headers={**HTML, "If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")


def test_every_response_forbids_inline_script_and_style(client):
    start(client)
    for path in ("/", "/runs/r", "/alerts", "/login", "/nowhere", "/api/v1/runs"):
        policy = client.get(path, headers=HTML).headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


def test_no_template_has_inline_script_or_style():
    for template in (rendering.FOLDER.parent / "templates").rglob("*.html"):
        source = template.read_text()
        assert not re.search(
            r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|https?://|\|\s*safe\b", source
        ), template


def test_static_files_are_kept_forever_under_an_address_of_their_content(client):
    address = re.search(r'href="(/static/at-\w+/)memagent\.css"', page(client, "/"))[1]
    response = client.get(f"{address}memagent.css", buffered=True)
    assert (response.status_code, response.mimetype) == (200, "text/css")
    assert "immutable" in response.headers["Cache-Control"]
    assert (
        client.get(f"{address}vendor/uplot/uPlot.iife.min.js", buffered=True).mimetype
        == "text/javascript"
    )
    for other in (
        "/static/memagent.css",
        "/static/at-0/memagent.css",
    ):  # the second is that of another version
        assert client.get(other, buffered=True).headers["Cache-Control"] == "no-cache"
    for nothing in (
        f"{address}nothing.css",
        f"{address}bundle/time+nothing.js",
        f"{address}../pages.py",
        f"{address}..%2fpages.py",
        "/static/../pages.py",
    ):
        reply = client.get(nothing)
        assert reply.status_code == 404 and "immutable" not in reply.headers.get(
            "Cache-Control", ""
        )


@pytest.mark.parametrize("path", ["/static/run.js", "/static/bundle/time+run.js"])
def test_static_text_is_compressed_if_accepted(client, path):
    plain = client.get(path, buffered=True)
    packed = client.get(path, headers={"Accept-Encoding": "br, gzip"}, buffered=True)
    assert (plain.headers.get("Content-Encoding"), packed.headers["Content-Encoding"]) == (
        None,
        "gzip",
    )
    assert gzip.decompress(packed.data) == plain.data
    assert int(packed.headers["Content-Length"]) == len(packed.data) < len(plain.data) / 2
    assert "Accept-Encoding" in plain.headers["Vary"]
    again = {"Accept-Encoding": "gzip", "If-None-Match": packed.headers["ETag"]}
    assert (client.get(path, headers=again).status_code) == 304


def test_a_long_series_and_pages_are_compressed(client):
    start(client)
    sample(
        client,
        **{
            name: [GIB] * 400
            for name in ("allocated_bytes", "peak_allocated_bytes", "reserved_bytes")
        },
    )
    path = "/api/v1/runs/r/series?fields=allocated_bytes,peak_allocated_bytes,reserved_bytes"
    plain, packed = client.get(path), client.get(path, headers={"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.data) == plain.data
    assert "Accept-Encoding" in plain.headers["Vary"]
    assert (
        client.get(
            path, headers={"Accept-Encoding": "gzip", "If-None-Match": packed.headers["ETag"]}
        ).data
        == b""
    )
    page = client.get("/runs/r", headers={**HTML, "Accept-Encoding": "gzip"})
    assert page.headers["Content-Encoding"] == "gzip"
    assert len(page.data) < len(gzip.decompress(page.data)) / 2


def test_a_page_at_rest_stays_the_same_as_time_passes(sqlite_app, sqlite_client):
    start(sqlite_client)
    sample(sqlite_client)
    sqlite_client.post("/api/v1/runs/r/finish", json={"status": "completed"})
    context = sqlite_app.extensions["memagent"]
    before = {path: sqlite_client.get(path, headers=HTML).headers["ETag"] for path in AT_REST}
    later = context.clock() + 3600
    sqlite_app.extensions["memagent"] = replace(context, clock=lambda: later)
    for path, etag in before.items():
        headers = {**HTML, "If-None-Match": etag}
        assert sqlite_client.get(path, headers=headers).status_code == 304, path


def test_the_vendored_chart_comes_with_version_and_licence():
    folder = rendering.FOLDER / "vendor" / "uplot"
    version = re.search(r"uPlot (\S+),", (folder / "VERSION").read_text())[1]
    assert f"(v{version})" in (folder / "uPlot.iife.min.js").read_text()[:200]
    assert "MIT License" in (folder / "LICENSE").read_text()


def test_a_preflight_shows_its_verdict_and_hints_are_hidden(client):
    client.post("/api/v1/runs", json={"run_id": "r"})
    tried = {
        "fits": True,
        "verdict": "preflight: eval needs 2.00 GiB more: 3.00 GiB of 8.00 GiB",
        "needs": [{"device": "D"}],
    }
    events = [{"kind": "hints", "data": {"epoch_steps": 77}}, {"kind": "preflight", "data": tried}]
    client.post("/api/v1/runs/r/batches", json={"seq": 0, "events": events})
    page = client.get("/runs/r").text
    assert '<td class="reason">eval needs 2.00 GiB more: 3.00 GiB of 8.00 GiB</td>' in page
    assert "epoch_steps" not in page and ">hints<" not in page
