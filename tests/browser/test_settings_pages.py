"""Tokens, column rules and retention in a browser: the first token keeps its creator logged in,
and the pages fit a phone.
"""

from __future__ import annotations

import pytest


def test_tokens_are_created_and_revoked_without_logging_out(server, open_page):
    page = open_page(f"{server.url}/settings/tokens")
    for name in ("ana", "old laptop"):
        page.get_by_label("Who or what it is for").fill(name)
        page.get_by_role("button", name="Create", exact=True).click()
        assert page.get_by_role("heading", name=f"Token for {name}").is_visible()
        assert page.locator(".secret").inner_text().startswith("mag_")
    page.reload()
    assert page.locator("tbody th", has_text="old laptop").count() == 1, "a reload makes no token"
    assert page.locator(".secret").count() == 0
    assert page.get_by_label("Scope").input_value() == "ingest", (
        "only the first token must have scope admin"
    )
    page.get_by_text("Revoke old laptop", exact=True).click()
    page.get_by_role("button", name="revoke old laptop").click()
    assert "is revoked" in page.get_by_role("status").inner_text()
    page.get_by_role("link", name="Retention").click()
    page.get_by_role("button", name="Search").click()
    assert (
        "There are no samples older than 30 days"
        in page.get_by_role("region", name="Delete old samples").inner_text()
    )
    page.get_by_role("button", name="Log out").click()
    assert page.get_by_role("heading", name="Log in").is_visible()


@pytest.mark.parametrize("width", [390, 1280])
def test_settings_pages_fit_a_screen_and_every_control_has_a_name(
    server, replay, scenarios, open_page, width
):
    replay(scenarios.hostile())
    page = open_page(width=width)
    page.goto(f"{server.url}/settings/tokens")
    page.get_by_label("Who or what it is for").fill("ana " * 20)
    page.get_by_role("button", name="Create", exact=True).click()
    for path in ("/settings/tokens", "/settings/retention?older_than=1"):
        page.goto(server.url + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        nameless = page.evaluate(
            "[...document.querySelectorAll('input:not([type=hidden]), select, button')]"
            ".filter(it => !it.textContent.trim() && !it.labels.length && !it.getAttribute('aria-label')).map(it => it.outerHTML)"
        )
        assert nameless == [], path
    assert page.evaluate("window.hacked") is None


def test_a_wrong_column_of_a_rule_is_told_beside_its_field_and_the_form_stays(server, open_page):
    page = open_page(f"{server.url}/settings/columns")
    page.get_by_label("Name").fill("Loss diverges")
    page.get_by_label("Column or scalar").fill("1 bad$")
    page.get_by_role("spinbutton", name="Value").fill("10")
    page.get_by_role("button", name="Add", exact=True).click()
    assert page.evaluate("document.querySelector('[name=column]').validity.patternMismatch")
    assert page.get_by_label("Name").input_value() == "Loss diverges"
    page.get_by_label("Column or scalar").fill("val/größe @5-best.2")
    page.get_by_role("button", name="Add", exact=True).click()
    assert page.locator("td", has_text="val/größe @5-best.2").count() == 1
