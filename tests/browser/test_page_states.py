"""States that pages rarely have: huge, loading, failing, stale, and for people without a right.

Each is tested for what the reader must learn, and for a width of 1,280 and of 390 px. Pictures of
them lie beside those of test_every_page.py.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("MEMAGENT_TEST_ARTIFACTS", "test-artifacts")) / "states"
LONG = "wikitext-103-" + "a-name-that-a-sweep-has-made-of-its-settings-" * 4 + "end"
TOKEN = "an admin token for tests only"
ADMIN = {"MEMAGENT_ADMIN_TOKEN": TOKEN}


@pytest.fixture
def picture(until):
    """picture(page, name): keep it in light, dark and at 390 px. No width may scroll the page."""

    def picture(page, name):
        FOLDER.mkdir(parents=True, exist_ok=True)
        for way, width, colors in (
            ("light", 1280, "light"),
            ("dark", 1280, "dark"),
            ("phone", 390, "light"),
        ):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=colors)
            until(
                lambda limit=width: page.evaluate("document.documentElement.scrollWidth") <= limit
            )
            page.screenshot(path=FOLDER / f"{name}-{way}.png", full_page=True)

    return picture


@pytest.fixture
def huge(scenarios):
    """Return a run of 8 ranks with 8 devices each, whose texts are 200 characters long."""
    one = scenarios.leaking()
    [columns] = [columns for (_, device), columns in one.streams.items() if device != "scalars"]
    short = {name: values[-120:] for name, values in columns.items()}
    devices = [
        {**one.devices[0], "id": f"GPU-{rank}-{index}", "index": index}
        for rank in range(8)
        for index in range(8)
    ]
    streams = {(int(item["id"].split("-")[1]), item["id"]): short for item in devices}
    config = {f"setting_{number}_{LONG}"[:200]: LONG for number in range(120)}
    return replace(
        one, run_id="huge", name=LONG, project=LONG, user=LONG, host=LONG, tags=[LONG[:190] + str(k) for k in range(9)],
        streams=streams, devices=devices, config=config, snapshot=None, forecasts=[], alert={**one.alert, "summary": LONG},
    )  # fmt: skip


def test_a_huge_run_keeps_its_page_readable(server, replay, huge, open_page, picture):
    replay(huge)
    page = open_page(f"{server.url}/runs/huge")
    page.wait_for_selector("#memory-chart[data-drawn]")
    assert page.get_by_role("heading", level=1).inner_text() == LONG
    page.wait_for_selector("#heat[data-drawn='64']")
    assert page.evaluate("document.documentElement.scrollHeight") < 6_000
    picture(page, "huge-run")
    assert "the peaks of 64 devices are within" in page.locator("#imbalance").inner_text()
    page.locator("#device").select_option("GPU-0-5")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**rank=0&device=GPU-0-5")
    assert (
        "rank 0, GPU-0-5"
        in page.get_by_role("heading", name="Memory", exact=False).first.inner_text()
    )
    page.locator("#rank").select_option("3")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**rank=3&device=GPU-0-5")  # another rank hasn't the device: its fullest
    assert (
        "rank 3, GPU-3-"
        in page.get_by_role("heading", name="Memory", exact=False).first.inner_text()
    )


def test_a_list_of_long_names_keeps_its_rows(server, replay, huge, scenarios, open_page, picture):
    replay(huge)
    plain = {"streams": {}, "devices": [], "alert": None, "events": [], "prediction": None}
    for number in range(60):
        replay(replace(huge, run_id=f"run{number}", name=f"{number} {LONG}", **plain))
    page = open_page(f"{server.url}/?columns=config.setting_1_{LONG}"[:214])
    rows = page.locator("table.runs > tbody > tr")
    heights = {round(row.bounding_box()["height"]) for row in rows.all()}
    assert max(heights) <= 36, heights
    picture(page, "huge-list")
    page.goto(f"{server.url}/alerts")
    picture(page, "huge-alerts")


def test_a_chart_says_that_it_loads(server, replay, scenarios, open_page, picture):
    replay(scenarios.healthy())
    page = open_page(may_fail=True)
    page.route("**/series*", lambda route: None)  # never answered
    page.goto(f"{server.url}/runs/h8healthy")
    chart = page.locator("#memory-chart")
    assert "Loading" in chart.inner_text()
    picture(page, "loading-run")
    page.unroute_all(behavior="ignoreErrors")


def test_a_chart_without_its_series_says_why(server, replay, scenarios, open_page, until, picture):
    replay(scenarios.healthy())
    page = open_page(may_fail=True)
    page.route("**/series*", lambda route: route.fulfill(status=503, body="busy"))
    page.goto(f"{server.url}/runs/h8healthy")
    until(lambda: "503" in page.locator("#memory-chart").inner_text())
    assert "could not be loaded" in page.locator("#scalar-charts").inner_text()
    picture(page, "failing-run")


def test_a_page_says_since_when_it_is_stale(server, replay, scenarios, open_page, until, picture):
    replay(scenarios.leaking())
    page = open_page(f"{server.url}/runs/k3v9leak", may_fail=True)
    page.wait_for_selector("#memory-chart[data-drawn]")
    page.route("**/runs/k3v9leak*", lambda route: route.fulfill(status=502, body="gone"))
    until(lambda: page.locator("#stale").is_visible())
    assert "Not updated since" in page.locator("#stale").inner_text()
    picture(page, "stale-run")


def test_people_without_a_right_are_told_which(start_server, open_page, picture):
    server = start_server("--role", "web", environ=ADMIN)
    admin = open_page(f"{server.url}/login")
    admin.get_by_label("Token").fill(TOKEN)
    admin.keyboard.press("Enter")
    admin.wait_for_url(f"{server.url}/")
    admin.goto(f"{server.url}/settings/tokens")
    admin.get_by_label("Who or what it is for").fill("reader")
    admin.get_by_label("Scope").select_option("read")
    admin.get_by_role("button", name="Create", exact=True).click()
    secret = admin.locator(".secret").inner_text()
    page = open_page(f"{server.url}/login", may_fail=True)
    page.get_by_label("Token").fill(secret)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{server.url}/")
    picture(page, "reader-runs")
    page.goto(f"{server.url}/settings/tokens")
    assert "admin" in page.locator("main").inner_text()
    picture(page, "reader-tokens")
    page.get_by_role("link", name="Log in with another token").click()
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{server.url}/settings/tokens")
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Token").fill(secret)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{server.url}/")
    page.goto(f"{server.url}/settings")
    assert page.get_by_role("button", name="Save").count() == 0
    picture(page, "reader-rules")
