"""The calculator in a real browser: it updates while typing, and works without scripts."""

from __future__ import annotations

import re

import pytest

PATH = "/estimate?model=gpt2-xl&batch=4&gpu=rtx4090"


def test_it_updates_while_typing_and_keeps_the_address(server, open_page):
    page = open_page(server.url + PATH)
    before = page.locator("#estimate-answer .headline").inner_text()
    page.get_by_label("Batch for each GPU").fill("1")
    page.wait_for_url(re.compile("batch=1(&|$)"))
    assert page.locator("#estimate-answer .headline").inner_text() != before
    shared = page.locator("#estimate-answer").inner_text()
    page.reload()
    assert page.locator("#estimate-answer").inner_text() == shared


def test_a_link_of_an_advice_shows_its_code_and_can_be_shared(server, open_page):
    page = open_page(server.url + PATH)
    code = page.locator("#advice-2 pre")
    assert not code.is_visible()
    page.locator("#advice-2 a").click()
    code.wait_for(state="visible")
    page.reload()
    code.wait_for(state="visible")


def test_an_invalid_field_is_marked_and_the_others_keep_their_values(server, open_page):
    page = open_page(server.url + PATH)
    field = page.get_by_label("Sequence length")
    field.fill("long")
    page.wait_for_selector("#field-sequence[aria-invalid]")
    assert "is not a whole number" in page.locator("#wrong-sequence").inner_text()
    assert field.input_value() == "long"
    field.fill("512")
    page.wait_for_selector("#field-sequence:not([aria-invalid])")
    page.wait_for_selector("#estimate-answer .headline")


def test_it_works_without_scripts(server, open_page):
    page = open_page(server.url + PATH, java_script_enabled=False)
    page.get_by_label("Batch for each GPU").fill("2")
    page.get_by_role("button", name="Estimate").click()
    assert "batch=2" in page.url
    assert "23.53 GiB" in page.locator("#estimate-answer .headline").inner_text()


def test_a_phone_shows_the_verdict_before_the_form(server, open_page):
    page = open_page(server.url + PATH, width=390, height=844, java_script_enabled=False)
    page.get_by_role("button", name="Estimate").click()
    verdict = page.locator("#estimate-answer .headline").bounding_box()
    assert verdict["y"] + verdict["height"] < 844
    assert verdict["y"] < page.locator("#estimate-form").bounding_box()["y"]
    parts = page.locator("#estimate-parts").bounding_box()
    assert parts["y"] > page.get_by_role("button", name="Estimate").bounding_box()["y"]


@pytest.mark.parametrize("dark", [False, True])
def test_the_parts_are_drawn_in_their_colors(server, open_page, dark):
    page = open_page(server.url + PATH, dark=dark)
    parts = page.locator("#estimate-parts .part").evaluate_all(
        "parts => parts.map(part => [getComputedStyle(part).fill, part.getBoundingClientRect().width])"
    )
    wide = [fill for fill, width in parts if width > 2]
    assert len(wide) >= 4
    assert len(set(wide)) == len(wide)


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_the_calculator_does_not_scroll_horizontally(server, open_page, width):
    page = open_page(server.url + PATH, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
