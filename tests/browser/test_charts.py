"""Charts in a real browser: the box at the cursor, keys, scales, smoothing, and the baseline."""

from __future__ import annotations

import re

from tests.browser.chart_reading import pixels, top, wait_for_chart, window


def hover(page, place, x, y=0.5):
    over = page.locator(f"{place} .u-over").first
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])


def visible_tips(page):
    """Return the text of each box that is shown, at one moment: charts are made anew meanwhile."""
    return page.locator(".tip:visible").all_inner_texts()


def cursor_step(page):
    """Return the step in the box, the last one of a bucket, -1 without one."""
    found = re.search(r"Steps? (?:[\d,]+ to )?([\d,]+)", "".join(visible_tips(page)))
    return int(found[1].replace(",", "")) if found else -1


def test_a_box_at_the_cursor_has_all_curves_and_what_happened(
    server, replay, scenarios, open_page, until
):
    replay(scenarios.leaking())
    page = wait_for_chart(open_page(f"{server.url}/runs/k3v9leak"))
    assert visible_tips(page) == []
    hover(page, "#memory-chart", 870 / 1725)
    until(lambda: len(visible_tips(page)) == 1)
    [text] = visible_tips(page)
    for name in ("Steps 8", "Allocated", "Peak", "Reserved", "Device used", "GiB", "73 %"):
        assert name in text, name
    assert "warning at step 870" in text
    hover(page, ".scalar-chart", 0.4)
    until(lambda: "loss" in "".join(visible_tips(page)))
    assert len(visible_tips(page)) == 1, "the other charts follow the cursor without a box"
    hover(page, "#stack-chart", 0.5)
    until(lambda: "other tensors" in "".join(visible_tips(page)))
    page.mouse.move(2, 2)
    until(lambda: visible_tips(page) == [])


def test_a_finger_shows_the_box_until_a_tap_elsewhere(server, replay, scenarios, open_page, until):
    replay(scenarios.leaking())
    page = open_page(
        f"{server.url}/runs/k3v9leak", width=390, height=844, is_mobile=True, has_touch=True
    )
    over = wait_for_chart(page).locator("#memory-chart .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + 90)
    until(lambda: "Allocated" in "".join(visible_tips(page)))
    tip = page.locator("#memory-chart .tip").bounding_box()
    assert tip["x"] >= 0 and tip["x"] + tip["width"] <= 390
    box = over.bounding_box()
    assert tip["y"] >= box["y"] + box["height"], "it hides no curve"
    page.locator("#memory-title").tap()
    until(lambda: visible_tips(page) == [])


def test_keys_move_the_cursor_and_zoom(server, replay, scenarios, open_page, until):
    replay(scenarios.healthy())
    page = wait_for_chart(open_page(f"{server.url}/runs/h8healthy"))
    page.locator("#memory-chart").focus()
    page.keyboard.press("Home")
    until(lambda: 0 <= cursor_step(page) < 6)  # one point is two pixels, of about five steps
    assert len(visible_tips(page)) == 1
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("ArrowLeft")
    until(lambda: cursor_step(page) > 6)
    page.keyboard.press("End")
    until(lambda: cursor_step(page) == 2400)
    page.keyboard.press("+")
    until(lambda: window(page)[2] < 1300)
    assert "from=" in page.url
    page.keyboard.press("[")
    until(lambda: window(page)[1] < 2000)
    page.keyboard.press("0")
    until(lambda: window(page)[2] == 2401)
    page.keyboard.press("l")
    until(lambda: "scale=log" in page.url)
    page.keyboard.press("Escape")
    until(lambda: visible_tips(page) == [])
    page.locator("#chart-keys summary").click()
    assert "move the cursor by one point" in page.locator("#chart-keys").inner_text()


def test_a_logarithmic_scale_is_part_of_the_address(server, replay, scenarios, open_page, until):
    replay(scenarios.leaking())
    page = wait_for_chart(open_page(f"{server.url}/runs/k3v9leak"))
    before = top(page, "curve-allocated")
    page.locator("#scale-log").click()
    until(lambda: top(page, "curve-allocated") < before - 0.1)
    assert page.url.endswith("?scale=log")
    page.reload()
    assert top(wait_for_chart(page), "curve-allocated") < before - 0.1
    assert pixels(page, "bar-critical") > 300, "the forecast is drawn on this scale, too"


def test_scalars_are_smoothed_and_scaled(server, replay, scenarios, open_page, until):
    replay(scenarios.leaking())
    page = wait_for_chart(open_page(f"{server.url}/runs/k3v9leak"))
    assert page.locator(".scalar-chart h3").first.inner_text().startswith("loss")
    raw = pixels(page, "curve-scalar", ".scalar-chart:nth-child(2)")
    page.locator("#smoothing").fill("90")
    until(lambda: pixels(page, "curve-scalar", ".scalar-chart:nth-child(2)") < 0.8 * raw)
    page.locator("#scalars-log").click()
    assert page.url.endswith("?smooth=0.9&scalars=log")
    hover(page, ".scalar-chart", 0.3)
    until(lambda: "smoothed" in "".join(visible_tips(page)))
    page.reload()
    wait_for_chart(page)
    assert page.locator("#smoothing").input_value() == "90"


def test_runs_are_compared_with_a_baseline(server, scenarios, replay, open_page, until):
    for scenario in scenarios.sweep():
        replay(scenario)
    page = open_page(f"{server.url}/compare?runs=sweep0,sweep1")
    page.wait_for_selector("#compare-chart[data-drawn='2']")
    page.locator("#relative").click()
    legend = page.locator("#compare-legend")
    until(lambda: "+6." in legend.inner_text())  # the second run begins 6 GiB higher
    hover(page, "#compare-chart", 0.5)
    until(lambda: "+6." in "".join(visible_tips(page)))
    page.get_by_label("Use gpt2-medium, context 2048 as the baseline").click()
    page.wait_for_url("**/compare?runs=sweep1,sweep0&relative=1")
    until(lambda: "−6." in legend.inner_text())


def test_a_slider_shows_what_the_forecast_said(server, replay, scenarios, open_page, until):
    replay(scenarios.leaking())
    page = wait_for_chart(open_page(f"{server.url}/runs/k3v9leak"))
    page.locator("#forecast-history summary").click()
    text = page.locator("#forecast-text")
    until(lambda: text.inner_text().startswith("Step 1,180: critical, leak"))
    slider = page.locator("#forecast-step")
    newest = next(iter(scenarios.leaking().streams.values()))
    # the first line begins on the curve, whatever the pace of the growth until the limit
    chart = page.locator("#memory-chart")
    assert chart.get_attribute("data-forecast-bytes") == str(newest["allocated_bytes"][-1])
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert text.inner_text() == ("Step 870: warning, leak, 93 % likely, limit at about step 1,610.")
    assert page.locator("#memory-chart").get_attribute("data-forecast") == "1610"
    slider.press("Home")
    assert "notice, leak, 40 % likely, limit at about step 2,300" in text.inner_text()
    assert slider.get_attribute("aria-valuetext") == text.inner_text()
    page.locator("#forecast-history summary").click()
    until(lambda: pixels(page, "bar-critical") > 300)


def test_the_flame_graph_is_searched(server, replay, scenarios, open_page, until):
    replay(scenarios.leaking())
    page = open_page(f"{server.url}/runs/k3v9leak")
    page.locator("#flame-search").fill("forward")
    found = page.locator("#flame-found")
    until(lambda: "frame" in found.inner_text())
    number, share = found.inner_text().split(" frame")[0], found.inner_text().split(", ")[1]
    assert int(number) >= 1 and share == "78 % of the memory"
    assert page.locator("#flame .is-faded").count() > 3
    page.locator("#flame-search").fill("")
    until(lambda: page.locator("#flame .is-faded").count() == 0)
