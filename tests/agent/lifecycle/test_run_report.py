"""The notebook card: well-formed, escaped, with the run's values."""

from __future__ import annotations

import os
from html.parser import HTMLParser

import pytest

import memagent
from memagent.lifecycle.run_report import render_card

GIB = 2**30
REPORT = {
    "run_id": "k3v9",
    "status": "running",
    "steps": 1200,
    "peaks": {"cuda": {"name": "A100", "peak_allocated_bytes": 36 * GIB, "limit_bytes": 40 * GIB}},
    "prediction": {"peak_allocated_bytes": 20 * GIB},
    "forecast": {"level": "warning", "eta_step": 1500.0, "cause": "leak"},
}


class Page(HTMLParser):
    """Collects tags, text and links; raises an error for unbalanced tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open, self.tags, self.links, self.text = [], [], [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name == "href"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + "\n"


def test_it_shows_status_peaks_prediction_and_forecast():
    html = render_card(
        REPORT, location="", name="gpt", url="http://box:8420/runs/k3v9", total_steps=5000
    )
    page = Page(html)
    assert page.open == [] and page.links == ["http://box:8420/runs/k3v9"]
    for text in ("gpt", "k3v9", "running", "step 1,200 of 5,000", "peak 36.00 GiB of 40.00 GiB"):
        assert text in page.text
    assert "predicted peak 20.00 GiB" in page.text
    assert "warning: expected to run out of memory at step 1,500 (cause: leak)" in page.text
    assert "width:90.0%" in html


def test_it_omits_unknown_values():
    bare = {**REPORT, "prediction": None, "forecast": {"level": "ok"}}
    bare["peaks"] = {"host": {"name": None, "peak_allocated_bytes": 0, "limit_bytes": None}}
    page = Page(render_card(bare, location="runs/k3v9.memagent"))
    assert (
        "predicted" not in page.text
        and "warning" not in page.text
        and "runs/k3v9.memagent" in page.text
    )
    assert page.links == []


def test_it_escapes_texts():
    evil = '"><script>alert(1)</script>'
    peaks = {evil: {"name": evil, "peak_allocated_bytes": 1, "limit_bytes": 2}}
    report = {
        **REPORT,
        "run_id": evil,
        "status": evil,
        "peaks": peaks,
        "forecast": {"level": "warning", "cause": evil},
    }
    page = Page(render_card(report, location=evil, name=evil, url=f"http://box/{evil}"))
    assert set(page.tags) == {"div", "b", "span", "a"}


def test_it_shows_a_real_run_during_and_after_training(training):
    model, optimizer, step = training
    with memagent.attach(model, optimizer, run_id="r1", name="<name>") as run:
        step()
        assert "running" in Page(run._repr_html_()).text
    page = Page(run._repr_html_())
    assert all(text in page.text for text in ("<name>", "completed", "step 1", "peak", "r1-rank0"))


def test_ipython_chooses_the_card(training):
    if "CI" not in os.environ:
        pytest.importorskip("IPython", reason="IPython is not installed")
    from IPython.core import formatters

    model, optimizer, step = training
    with memagent.attach(model, optimizer) as run:
        step()
        data, _ = formatters.DisplayFormatter().format(run)
    assert "memagent-run" in data["text/html"]
