"""Alerts, the scoreboard and the rules in a browser: clicks, and their effect."""

from __future__ import annotations

import json

import pytest

PATHS = (
    "/alerts",
    "/alerts/scoreboard",
    "/settings",
    "/settings?project=language",
    "/settings/channels",
)


def test_buttons_acknowledge_snooze_and_mark_an_alert_as_false(
    server, replay, scenarios, open_page
):
    replay(scenarios.leaking())
    page = open_page(f"{server.url}/alerts")
    page.locator(".triage > summary").click()
    for button, text in (
        ("Acknowledge", "Acknowledged"),
        ("Snooze 1 h", "Snoozed for 60 min"),
        ("False alarm", "Marked as a false alarm"),
    ):
        page.locator(".alert").get_by_role("button", name=button).click()
        page.wait_for_url(f"{server.url}/alerts#incident-1")
        assert text in page.locator(".alert").inner_text()  # the row of the address is open
    assert page.locator("form").get_by_role("button").all_inner_texts() == ["Undo"]
    page.get_by_role("link", name="Warning accuracy").click()
    assert "leak 1 0 0 0 0 1 1" in " ".join(page.get_by_label("By cause").last.inner_text().split())


def test_an_acknowledgement_is_taken_back(server, replay, scenarios, open_page):
    replay(scenarios.leaking())
    page = open_page(f"{server.url}/alerts")
    page.locator(".triage > summary").click()
    page.locator(".alert").get_by_role("button", name="Acknowledge").click()
    page.wait_for_selector(".triage.handled")
    page.get_by_role("button", name="Undo").click()
    page.wait_for_selector(".triage:not(.handled)")
    assert page.locator(".alert").get_by_role("button", name="Acknowledge").is_visible()
    assert page.locator("#alerts-link .pill").inner_text() == "1"


def test_five_open_alerts_fit_on_a_phone(server, replay, scenarios, open_page):
    for number in range(5):
        scenario = scenarios.leaking()
        scenario.run_id = f"leak{number}"
        replay(scenario)
    page = open_page(f"{server.url}/alerts", width=390, height=844)
    rows = page.locator(".triage")
    assert rows.count() == 5
    assert [rows.nth(index).bounding_box()["height"] for index in range(5)] == [44] * 5
    assert page.evaluate("document.documentElement.scrollHeight") <= 844
    page.get_by_role("button", name="Acknowledge all 5").click()
    page.wait_for_selector(".triage.handled")
    assert page.locator(".triage.handled").count() == 5
    assert page.get_by_role("button", name="Acknowledge").count() == 0
    assert page.locator("#alerts-link .pill").count() == 0, "nothing waits for anybody"


def test_an_alert_of_a_leak_has_the_line_and_its_fix(server, replay, scenarios, open_page):
    replay(scenarios.leaking())
    page = open_page(f"{server.url}/alerts", width=390, height=844)
    assert "No channel is set up" in page.get_by_role("status").inner_text()
    page.locator(".triage summary").click()
    lead = page.locator(".triage .lead")
    assert lead.inner_text().startswith("train.py:88 keeps total_loss")
    assert lead.locator(".is-suspect").inner_text().endswith("total_loss += loss")
    assert "Add loss.item() or loss.detach()" in lead.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_button_on_the_run_page_returns_to_the_run(server, replay, scenarios, open_page):
    replay(scenarios.leaking())
    page = open_page(f"{server.url}/runs/k3v9leak")
    page.get_by_role("button", name="Acknowledge").click()
    page.wait_for_url(f"{server.url}/runs/k3v9leak#incident-1")
    assert "Acknowledged" in page.locator("#run-alerts").inner_text()


def test_a_rule_is_changed_for_one_project_and_reset(server, replay, scenarios, open_page):
    replay(scenarios.leaking())
    page = open_page(f"{server.url}/settings")
    page.get_by_role("link", name="language").click()
    page.get_by_label("high water: the peak as a share of the limit").fill("90")
    page.get_by_label("Notify about high water").select_option("warning")
    page.get_by_label("stalled", exact=True).uncheck()
    page.get_by_role("button", name="Save").click()
    page.wait_for_url(f"{server.url}/settings?project=language&saved=1")
    assert page.get_by_role("status").inner_text().startswith("Saved.")
    assert page.get_by_label("high water: the peak as a share of the limit").input_value() == "90"
    assert not page.get_by_label("stalled", exact=True).is_checked()
    page.get_by_role("link", name="Every project").click()
    assert page.get_by_label("high water: the peak as a share of the limit").input_value() == "97"
    page.get_by_role("link", name="language").click()
    page.get_by_role("button", name="Reset to the rules of every project").click()
    page.wait_for_url(f"{server.url}/settings?project=language&saved=1")
    assert page.get_by_label("stalled", exact=True).is_checked()


def test_a_threshold_out_of_range_is_not_submitted(server, replay, scenarios, open_page):
    replay(scenarios.leaking())
    page = open_page(f"{server.url}/settings")
    page.get_by_label("leak: growth so far as a share of the limit").fill("700")
    page.get_by_role("button", name="Save").click()
    assert page.get_by_label("leak: growth so far as a share of the limit").evaluate(
        "it => !it.validity.valid"
    )


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_alert_pages_do_not_scroll_horizontally_and_every_control_has_a_name(
    server, replay, scenarios, open_page, width
):
    replay(scenarios.leaking())
    replay(scenarios.hostile())
    page = open_page(width=width)
    for path in PATHS:
        page.goto(server.url + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        nameless = page.evaluate(
            "[...document.querySelectorAll('input:not([type=hidden]), select, button')]"
            ".filter(it => !it.textContent.trim() && !it.labels.length && !it.getAttribute('aria-label')).map(it => it.outerHTML)"
        )
        assert nameless == [], path
    assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize("page_name", ["routing", "tokens", "changes", "columns", "channels"])
def test_tables_of_settings_fit_a_phone(server, open_page, page_name):
    route = {"name": "Vision", "projects": ["vision", "vit-*"], "channels": ["webhook"]}
    rule = {"column": "loss", "test": "not_finite", "value": 0, "for_s": 0, "level": "critical"}
    headers = {"Content-Type": "application/json"}
    for path, body in (
        ("/api/v1/routes", {"routes": [route]}),
        ("/api/v1/column-rules", {"rules": {"loss is a number": rule}}),
    ):
        assert server.request("PUT", path, json.dumps(body).encode(), headers).status == 200
    page = open_page(f"{server.url}/settings/{page_name}", width=390, height=844)
    wide = (
        "[...document.querySelectorAll('.table-box')].filter(it => it.scrollWidth > it.clientWidth)"
    )
    assert page.evaluate(f"{wide}.length") == 0
    if page_name != "tokens":
        assert page.locator("table.as-cards tbody tr").count()
