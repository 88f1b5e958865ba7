"""Every page, looked at: axe-core finds nothing wrong with it in light and in dark, it fits on a
phone, nothing reaches beyond its card, and pictures of it are kept.

The pictures lie in test-artifacts/pages, where CI keeps them. One test walks through all pages, for
starting a server and filling it takes longer than the looking.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("MEMAGENT_TEST_ARTIFACTS", "test-artifacts")) / "pages"
COMPARED = "/compare?runs=sweep0,sweep1,k3v9leak"
PAGES = {
    "runs": "/",
    "runs-none-match": "/?q=nothing+like+it",
    "runs-arranged": "/?sort=-step&columns=step,peak_ratio",
    "groups": "/?group=status,user&columns=step,peak_ratio",
    "groups-wrong": "/?group=nothing",
    "run-leaking": "/runs/k3v9leak",
    "run-died": "/runs/d1ed",
    "run-ranks": "/runs/ddp2?ranks=all&axis=time",
    "compare": COMPARED,
    "alerts": "/alerts",
    "scoreboard": "/alerts/scoreboard",
    "failures": "/failures?state=all",
    "waste": "/waste",
    "estimate": "/estimate?model=gpt2-xl&batch=4&gpu=rtx4090",
    "estimate-wrong": "/estimate?model=gpt2-xl&batch=x",
    "settings": "/settings",
    "columns": "/settings/columns",
    "channels": "/settings/channels",
    "routing": "/settings/routing",
    "tokens": "/settings/tokens",
    "people": "/settings/people",
    "changes": "/settings/changes",
    "retention": "/settings/retention?older_than=1",
    "runbooks": "/runbooks#oom_forecast",
    "manual": "/docs",
    "manual-http": "/docs/http",
    "not-found": "/runs/nobody",
}
CHARTS = {"run": "#memory-chart[data-drawn]", "compare": "#compare-chart[data-drawn]"}
LINK = "/api/v1/runs/k3v9leak/public-link"
OVERFLOWING = """
[...document.querySelectorAll('.card, .alert')].flatMap(card => [...card.querySelectorAll('*')].filter(part => {
  for (let box = part; box !== card; box = box.parentElement)
    if (getComputedStyle(box).overflowX !== 'visible' && box !== part || getComputedStyle(box).position === 'absolute') return false
  return part.getBoundingClientRect().right > card.getBoundingClientRect().right + 1
}).map(part => part.outerHTML.slice(0, 160)))
"""
"""Parts that reach beyond the card that they are in, and are not scrolled."""
BEFORE_TOKENS = {"first-visit": "/"}
WITH_TOKENS = {"login": "/login"}
CONTRAST = {"runOnly": ["color-contrast"], "resultTypes": ["violations"]}


@pytest.fixture
def axe():
    """axe(page, options): what axe-core finds wrong with a page, a line each."""
    if os.environ.get("CI"):
        from axe_playwright_python.sync_playwright import Axe
    else:
        Axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe  # noqa: N806

    def axe(page, options=None):
        result = (
            Axe()
            .run(page, options=options or {"resultTypes": ["violations"]})
            .response["violations"]
        )
        return [
            f"{one['id']}: {node['target']} {node['html'][:160]}"
            for one in result
            for node in one["nodes"]
        ]

    return axe


@pytest.fixture
def look(axe, open_page, until):
    """look(url, {name: path}): what is wrong with the pages, by name and way of looking."""

    def look(url, pages):
        FOLDER.mkdir(parents=True, exist_ok=True)
        page, wrong = open_page(may_fail=True), {}
        for name, path in pages.items():
            page.set_viewport_size({"width": 1280, "height": 900})
            page.emulate_media(color_scheme="light")
            page.goto(url + path)
            if chart := CHARTS.get(name.partition("-")[0]):
                page.wait_for_selector(chart)
            page.screenshot(path=FOLDER / f"{name}-light.png", full_page=True)
            page.evaluate(
                "for (const part of document.querySelectorAll('details')) part.open = true"
            )
            wrong[name, "light"] = axe(page)
            wrong[name, "beyond its card"] = page.evaluate(OVERFLOWING)
            page.emulate_media(color_scheme="dark")
            wrong[name, "dark"] = axe(page, CONTRAST)
            page.screenshot(path=FOLDER / f"{name}-dark.png", full_page=True)
            page.set_viewport_size({"width": 390, "height": 844})
            until(
                lambda: page.evaluate("document.documentElement.scrollWidth") <= 390
            )  # charts follow in the next frame
            wrong[name, "beyond its card on a phone"] = page.evaluate(OVERFLOWING)
            page.screenshot(path=FOLDER / f"{name}-phone.png", full_page=True)
        return {key: item for key, item in wrong.items() if item}

    return look


def test_every_page_is_accessible_and_fits_on_a_phone(server, replay, scenarios, look):
    assert look(server.url, BEFORE_TOKENS) == {}
    for scenario in (
        scenarios.lost_contact(),
        scenarios.died(),
        scenarios.two_ranks(),
        scenarios.leaking(),
        *scenarios.sweep(),
    ):
        replay(scenario)
    assert look(server.url, PAGES) == {}
    link = server.request("PUT", LINK, b"{}", {"content_type": "application/json"}).json
    public = {"run-public": link["url"], "run-embedded": link["embed_url"]}
    assert look("", public) == {}


def test_the_login_page_is_accessible(start_server, look):
    server = start_server(
        "--role", "web", environ={"MEMAGENT_ADMIN_TOKEN": "a token for tests only"}
    )
    assert look(server.url, WITH_TOKENS) == {}
