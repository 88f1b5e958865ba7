"""How a notebook shows a run: well-formed, escaped, with the run's own figures."""

from __future__ import annotations

import os
from html.parser import HTMLParser

import pytest

import memagent
from memagent.lifecycle.notebook import render_card

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
    """Tags that are open, text, and links; raises where a tag closes another."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open, self.tags, self.links, self.said = [], [], [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name == "href"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.said += data + "\n"


def test_a_card_shows_what_the_run_knows():
    html = render_card(
        REPORT, location="", name="gpt", url="http://box:8420/runs/k3v9", total_steps=5000
    )
    page = Page(html)
    assert page.open == [] and page.links == ["http://box:8420/runs/k3v9"]
    for text in ("gpt", "k3v9", "running", "step 1,200 of 5,000", "peak 36.00 GiB of 40.00 GiB"):
        assert text in page.said
    assert "predicted peak 20.00 GiB" in page.said
    assert "warning: expected to run out of memory at step 1,500 (cause: leak)" in page.said
    assert "width:90.0%" in html


def test_what_is_not_known_is_left_out():
    bare = {**REPORT, "prediction": None, "forecast": {"level": "ok"}}
    bare["peaks"] = {"host": {"name": None, "peak_allocated_bytes": 0, "limit_bytes": None}}
    page = Page(render_card(bare, location="runs/k3v9.memagent"))
    assert (
        "predicted" not in page.said
        and "warning" not in page.said
        and "runs/k3v9.memagent" in page.said
    )
    assert page.links == []


def test_texts_are_escaped():
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


def test_a_real_run_is_shown_while_it_runs_and_when_it_has_ended(training):
    model, optimizer, step = training
    with memagent.attach(model, optimizer, run_id="shown", name="<mine>") as run:
        step()
        assert "running" in Page(run._repr_html_()).said
    page = Page(run._repr_html_())
    assert all(
        text in page.said for text in ("<mine>", "completed", "step 1", "peak", "shown-rank0")
    )


def test_ipython_chooses_the_card(training):
    if "CI" not in os.environ:
        pytest.importorskip("IPython", reason="IPython is not installed")
    from IPython.core import formatters

    model, optimizer, step = training
    with memagent.attach(model, optimizer) as run:
        step()
        data, _ = formatters.DisplayFormatter().format(run)
    assert "memagent-run" in data["text/html"]
