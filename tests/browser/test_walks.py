"""Five people's ways through the pages, each with its clicks and bytes, and a picture of each step.

The pictures lie in test-artifacts/walks, with the counts in walks.json. A way is bounded by clicks
and bytes, never by seconds.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("MEMAGENT_TEST_ARTIFACTS", "test-artifacts")) / "walks"
PHONE = {"width": 390, "height": 844}


@dataclass
class Walk:
    """A page in a new browser context, and what it has cost so far."""

    name: str
    page: Any
    clicks: int = 0
    sizes: list[int] = field(default_factory=list)
    pictures: int = 0

    def click(self, locator):
        self.clicks += 1
        locator.click()
        return self

    def look(self):
        """Take a picture of what the screen shows."""
        self.pictures += 1
        self.page.screenshot(path=FOLDER / f"{self.name}-{self.pictures}.png")

    def is_on_screen(self, text):
        """Return True if a text is within the first screen, without scrolling."""
        height = self.page.viewport_size["height"]
        box = self.page.get_by_text(text).first.bounding_box()
        return box is not None and box["y"] + box["height"] <= height


@pytest.fixture
def walk(open_page):
    """walk(name, url, ...) -> Walk; its counts are written at the end."""
    walks = []
    FOLDER.mkdir(parents=True, exist_ok=True)

    def walk(name, url, **options):
        page = open_page(**options)
        one = Walk(name, page)
        session = page.context.new_cdp_session(page)
        session.on(
            "Network.loadingFinished", lambda event: one.sizes.append(event["encodedDataLength"])
        )
        session.send("Network.enable")
        page.goto(url)
        walks.append(one)
        return one

    yield walk
    counts = FOLDER / "walks.json"
    known = json.loads(counts.read_text()) if counts.exists() else {}
    known |= {one.name: {"clicks": one.clicks, "kB": round(sum(one.sizes) / 1000)} for one in walks}
    counts.write_text(json.dumps(known, indent=1))


def test_a_first_run_appears_by_itself_and_says_that_it_fits(server, replay, scenarios, walk):
    way = walk("first-run", server.url)
    way.look()
    assert way.is_on_screen("memagent.attach(model, optimizer)")
    replay(scenarios.healthy())
    link = way.page.get_by_role("link", name="gpt2-medium baseline")
    link.wait_for()
    way.look()
    way.click(link)
    way.page.wait_for_selector("#memory-chart[data-drawn]")
    way.look()
    assert way.is_on_screen("Fits: peak 49.92 of 79.00 GiB")
    assert (way.clicks, sum(way.sizes) < 250_000) == (1, True)


def test_a_death_at_night_is_explained_on_the_first_screen(server, replay, scenarios, walk):
    replay(scenarios.died())
    way = walk("death", f"{server.url}/runs/d1ed")  # the link of the message in Slack
    way.look()
    for text in (
        "Out of memory in step 1,235",
        "/home/ana/char/train.py:42",
        "outputs.append(logits.detach())",
    ):
        assert way.is_on_screen(text), text
    assert (way.clicks, sum(way.sizes) < 130_000) == (0, True)


def test_a_lead_finds_waste_and_compares_three_runs(server, replay, scenarios, walk):
    for scenario in (*scenarios.sweep(), scenarios.leaking()):
        replay(scenario)
    way = walk("lead", server.url)
    way.click(way.page.get_by_role("link", name="Waste"))
    way.page.wait_for_url("**/waste")
    way.look()
    assert way.is_on_screen("Unused")
    way.page.go_back()
    for run in ("context 1024", "context 2048", "longer context"):
        way.click(way.page.get_by_label(f"Select gpt2-medium, {run}"))
    way.look()
    way.click(way.page.get_by_role("button", name="Compare"))
    way.page.wait_for_selector("#compare-chart[data-drawn]")
    way.look()
    assert way.is_on_screen("Differences in the config")
    assert (way.clicks, sum(way.sizes) < 250_000) == (5, True)


def test_five_alerts_fit_a_phone_and_a_group_is_acknowledged_at_once(
    server, replay, scenarios, walk, until
):
    leak = scenarios.leaking()
    for number in range(5):
        replay(replace(leak, run_id=f"leak{number}", name=f"night run {number}", snapshot=None))
    way = walk("on-call", f"{server.url}/alerts", **PHONE)
    way.look()
    for number in range(5):
        assert way.is_on_screen(f"night run {number}")
    way.click(way.page.get_by_role("button", name="Acknowledge").first)
    until(way.page.get_by_text("acknowledged").first.is_visible)
    rows = way.page.locator(".triage > summary").all()
    assert max(row.bounding_box()["height"] for row in rows) <= 48
    way.look()
    assert way.page.evaluate("scrollY") == 0
    assert (way.clicks, sum(way.sizes) < 120_000) == (1, True)


def test_an_admin_makes_a_token_and_sees_what_is_missing_for_slack(server, walk):
    way = walk("admin", server.url)
    way.click(way.page.get_by_role("link", name="Settings"))
    way.click(way.page.get_by_role("link", name="Tokens"))
    way.page.wait_for_url("**/tokens")
    way.look()
    way.page.get_by_label("Who or what it is for").fill("trainers")
    way.click(way.page.get_by_role("button", name="Create", exact=True))
    assert way.page.locator(".secret").inner_text().startswith("mag_")
    way.look()
    way.click(way.page.get_by_role("link", name="Channels"))
    way.page.wait_for_url("**/channels")
    way.look()
    assert way.is_on_screen("MEMAGENT_SLACK_WEBHOOK_URL")
    assert (way.clicks, sum(way.sizes) < 200_000) == (4, True)
