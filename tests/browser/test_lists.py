"""The lists of runs and alerts in a real browser: live, searchable, and usable by keyboard."""

from __future__ import annotations

import re

import pytest

FOCUS = """(() => {
  const element = document.activeElement;
  const style = getComputedStyle(element);
  return [element.textContent.trim() || element.name, style.outlineStyle, parseFloat(style.outlineWidth)];
})()"""


def names(page):
    return page.locator(".cell-run .strong").all_inner_texts()


def test_the_first_run_appears_by_itself(server, replay, scenarios, open_page):
    page = open_page(server.url)
    assert "import memagent" in page.locator("#runs").inner_text()
    replay(scenarios.lost_contact())
    page.wait_for_selector("table.runs")
    assert names(page) == ["resnet50 augment"]


def test_the_list_refreshes_without_losing_the_focus(server, replay, scenarios, open_page, until):
    replay(scenarios.lost_contact())
    page = open_page(server.url)
    page.get_by_role("link", name="resnet50 augment").focus()
    replay(scenarios.leaking())
    until(lambda: len(names(page)) == 2)
    assert names(page) == ["gpt2-medium, longer context", "resnet50 augment"]
    assert page.evaluate("document.activeElement.textContent") == "resnet50 augment"


def test_a_refresh_keeps_the_focus_beside_copy_buttons(server, replay, scenarios, open_page, until):
    replay(scenarios.leaking())
    page = open_page(f"{server.url}/runs/k3v9leak")
    page.locator("#suspects .copyable > pre").first.focus()
    focused = page.evaluate("document.activeElement.textContent")

    def changed(route):
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace("Leak suspects", "Suspects"))

    page.evaluate("document.querySelector('#suspects-title').textContent = 'Old'")
    page.route(f"{server.url}/runs/k3v9leak", changed)
    until(lambda: page.locator("#suspects-title").inner_text() == "Suspects")
    assert page.evaluate("document.activeElement.textContent") == focused


def test_an_unchanged_list_is_not_redrawn(server, replay, scenarios, open_page):
    replay(scenarios.failed())
    page = open_page(server.url)
    page.evaluate("document.querySelector('table.runs').untouched = true")
    with page.expect_response(lambda response: response.url.rstrip("/") == server.url):
        pass
    with page.expect_response(lambda response: response.url.rstrip("/") == server.url) as second:
        pass
    assert second.value.status == 304
    assert page.evaluate("document.querySelector('table.runs').untouched")


def test_runs_are_searched_and_filtered(server, replay, scenarios, open_page):
    for scenario in (scenarios.lost_contact(), scenarios.failed(), scenarios.leaking()):
        replay(scenario)
    page = open_page(server.url)
    page.get_by_role("searchbox").fill("vision")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("q=vision"))
    assert names(page) == ["resnet50 augment", "vit-b16 lr sweep"]
    page.get_by_label("Status").select_option("failed")
    page.wait_for_url(re.compile("status=failed"))
    assert names(page) == ["vit-b16 lr sweep"]


def test_a_slash_goes_to_the_search(server, replay, scenarios, open_page):
    replay(scenarios.healthy())
    page = open_page(f"{server.url}/")
    search = page.get_by_label("Search runs")
    page.keyboard.press("/")
    page.keyboard.type("lr/x")
    assert search.input_value() == "lr/x"


def test_a_filter_is_written_with_completed_columns(server, replay, scenarios, open_page):
    replay(scenarios.failed())
    replay(scenarios.leaking())
    page = open_page(server.url)
    page.locator("#arrange summary").click()
    field = page.get_by_label("Filter", exact=True)
    field.press_sequentially('status = "running" and config.optimizer.l')
    options = page.locator("#names option")
    assert options.evaluate_all("all => all.map(option => option.value)") == [
        'status = "running" and config.optimizer.lr'
    ]
    field.fill('status = "running" and config.optimizer.lr < 0.001')
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("where=status"))
    assert names(page) == ["gpt2-medium, longer context"]
    assert 'filter status = "running" and config.optimizer.lr < 0.001' in page.inner_text(".chips")
    page.locator("#arrange summary").click()
    field.fill("peak_ration > 1")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    assert "the nearest is 'peak_ratio'" in page.get_by_role("alert").inner_text()
    assert len(names(page)) == 2
    assert field.is_visible()  # to be corrected
    page.get_by_role("link", name="Remove filter").click()
    page.wait_for_url(f"{server.url}/")


def test_chosen_columns_are_shown_beside_whole_names(server, replay, scenarios, open_page):
    replay(scenarios.leaking())
    page = open_page(server.url)
    page.locator("#arrange summary").click()
    field = page.get_by_label("Columns", exact=True)
    field.press_sequentially("config.optimizer.l")
    options = page.locator("#chosen-names option")
    assert options.evaluate_all("all => all.map(option => option.value)") == ["config.optimizer.lr"]
    field.fill("config.optimizer.lr")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("columns=config.optimizer.lr"))
    assert page.locator("td.cell-chosen").inner_text() == "0.0003"
    name = page.locator(".cell-run").first
    assert name.evaluate("cell => cell.clientWidth") > 180
    assert name.locator("+ td").inner_text() == "0.0003"


def test_four_chosen_columns_fit_a_laptop_and_the_run_stays_beside_more(
    server, replay, scenarios, open_page
):
    for scenario in (scenarios.leaking(), *scenarios.sweep()):
        replay(scenario)
    columns = "config.optimizer.lr,config.batch_size,scalar.loss,peak_ratio"
    page = open_page(f"{server.url}/?columns={columns}")
    box = page.locator("#runs .table-box")
    assert box.evaluate("box => box.scrollWidth <= box.clientWidth")
    page.set_viewport_size({"width": 800, "height": 600})
    box.evaluate("box => box.scrollTo(1000, 0)")
    assert box.evaluate("box => box.scrollLeft") > 0
    run = page.locator(".cell-run").first.bounding_box()
    assert run["x"] <= box.bounding_box()["x"] + 2


def test_a_column_of_dashes_is_left_out(server, replay, scenarios, open_page):
    replay(scenarios.failed())
    page = open_page(server.url)
    forecast = page.get_by_role("columnheader", name="Forecast")
    assert forecast.count() == 0
    replay(scenarios.leaking())
    forecast.wait_for()


def test_a_phone_shows_the_first_run_at_once_and_dense_cards(server, replay, scenarios, open_page):
    for scenario in (scenarios.failed(), scenarios.leaking()):
        replay(scenario)
    page = open_page(server.url, width=390, height=844)
    status = page.get_by_label("Status")
    assert not status.is_visible()
    card = page.locator("table.runs tbody tr").first.bounding_box()
    assert card["y"] + card["height"] < 500
    assert card["height"] < 130
    line = page.locator("#danger li").first
    assert line.bounding_box()["height"] < 30
    assert re.search(r"\bOOM in ~\d+ min$", line.inner_text())
    page.locator("#arrange summary").click()
    assert status.is_visible()


def test_comfortable_rows_are_kept_in_the_browser(server, replay, scenarios, open_page, until):
    replay(scenarios.failed())
    page = open_page(server.url)
    row = page.locator("table.runs tbody tr")
    dense = row.bounding_box()["height"]
    page.locator("#arrange summary").click()
    page.get_by_role("button", name="Tall rows").click()
    until(lambda: row.bounding_box()["height"] > 1.5 * dense)
    page.reload()
    until(lambda: row.bounding_box()["height"] > 1.5 * dense)
    page.locator("#arrange summary").click()
    page.get_by_role("button", name="Tall rows", pressed=True).click()
    until(lambda: row.bounding_box()["height"] == dense)


def test_a_row_summarises_a_run(server, replay, scenarios, open_page):
    replay(scenarios.leaking())
    page = open_page(server.url, width=1600)
    row = page.locator("table.runs tbody tr").inner_text()
    for words in (
        "running",
        "gpt2-medium, longer context",
        "language",
        "ana on gpu-07",
        "1,180 of 5,000",
        "of 79.00 GiB",
        "+43 %",
        "~420 steps",
    ):
        assert words in row
    bar = page.locator("table.runs .bar").evaluate(
        "bar => [...bar.children].map(part => part.getBoundingClientRect().width)"
    )
    track, fill = bar[:2]
    assert 0.8 < fill / track < 0.9


def test_a_screen_shows_twenty_runs(server, replay, scenarios, open_page):
    for number in range(24):
        scenario = scenarios.failed()
        scenario.run_id = f"run{number}"
        scenario.name = f"vit-b16 {number} " + "with a long name " * (number // 3)
        replay(scenario)
    page = open_page(server.url, height=900)
    heights = page.locator("table.runs tbody tr").evaluate_all(
        "rows => rows.map(row => row.getBoundingClientRect())"
        ".map(({ height, bottom }) => [height, bottom])"
    )
    assert all(height <= 36 for height, _ in heights)
    assert sum(bottom <= 900 for _, bottom in heights) >= 20


def test_selected_runs_stay_selected_while_the_list_changes_and_are_compared_tagged_and_archived(
    server, replay, scenarios, open_page, until
):
    replay(scenarios.failed())
    page = open_page(server.url)
    selected = page.locator("#selected")
    assert not selected.is_visible()
    page.get_by_label("Select vit-b16 lr sweep").check()
    assert page.locator("#compare").is_disabled()
    replay(scenarios.lost_contact())
    until(lambda: len(names(page)) == 2)
    assert page.get_by_label("Select vit-b16 lr sweep").is_checked()
    page.get_by_label("Select all runs").check()
    assert "2 runs selected" in selected.inner_text()
    page.get_by_role("textbox", name="Tag").fill("vision-2")
    page.keyboard.press("Enter")
    page.wait_for_selector(".cell-run .tag")
    page.get_by_label("Select all runs").check()
    page.locator("#compare").click()
    page.wait_for_url(re.compile(r"/compare\?runs=\w+,\w+$"))
    page.go_back()
    page.get_by_label("Select resnet50 augment").check()
    page.get_by_label("Select vit-b16 lr sweep").uncheck()
    page.locator("#edit-selected summary").click()
    page.get_by_role("textbox", name="New name of each").fill("augmented")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="augmented").wait_for()
    page.get_by_label("Select augmented").check()
    page.get_by_label("Select vit-b16 lr sweep").uncheck()
    page.get_by_role("button", name="Archive").click()
    until(lambda: names(page) == ["vit-b16 lr sweep"])
    page.get_by_role("link", name="Archived runs").click()
    until(lambda: names(page) == ["augmented"])
    assert page.locator(".sparkline polyline").count() == 1


def test_alerts_show_their_history_and_link_to_the_run(server, replay, scenarios, open_page):
    replay(scenarios.leaking())
    page = open_page(f"{server.url}/alerts")
    page.locator(".triage > summary").click()
    text = page.locator(".alert").inner_text()
    for words in (
        "firing",
        "step 870",
        "confirmed by 2 forecasts in a row",
        "Slack webhook sent",
        "Webhook waiting",
        "503 Service Unavailable",
    ):
        assert words in text
    page.get_by_role("link", name="History").click()
    page.get_by_role("link", name="Averted").click()
    assert "No alerts in this state" in page.locator("#alerts").inner_text()
    page.get_by_role("link", name="Open", exact=True).click()
    page.locator(".triage > summary").click()
    page.get_by_role("link", name="gpt2-medium, longer context").click()
    page.wait_for_selector("#memory-chart[data-drawn]")


def test_keyboard_focus_is_always_visible(server, replay, scenarios, open_page):
    replay(scenarios.leaking())
    page = open_page(server.url)
    focused = []
    while "gpt2-medium, longer context" not in focused and len(focused) < 20:
        page.keyboard.press("Tab")
        facts = page.evaluate(FOCUS)
        assert facts[1] != "none", facts
        assert facts[2] >= 2, facts
        focused.append(facts[0])
    assert focused[0] == "Skip to content"
    assert "q" in focused
    assert "gpt2-medium, longer context" in focused


def test_nothing_is_loaded_from_other_hosts(server, replay, scenarios, open_page):
    replay(scenarios.leaking())
    page, urls = open_page(), []
    page.on("request", lambda request: urls.append(request.url))
    for path in ("/", "/alerts", "/runs/k3v9leak"):
        page.goto(server.url + path, wait_until="networkidle")
    assert urls
    assert all(url.startswith(server.url + "/") for url in urls)


def test_people_log_in_with_a_token_and_out_again(start_server, open_page):
    server = start_server(
        "--role", "web", environ={"MEMAGENT_ADMIN_TOKEN": "a token for tests only"}
    )
    page = open_page(f"{server.url}/alerts")
    assert page.url == f"{server.url}/login?next=%2Falerts"
    page.get_by_label("Token").fill("a token for tests only")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{server.url}/alerts")
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(f"{server.url}/login")


@pytest.mark.parametrize("width", [768, 1024, 1280, 1920])
def test_no_list_scrolls_horizontally(server, replay, scenarios, open_page, width):
    replay(scenarios.leaking())
    page = open_page(width=width)
    for path in ("/", "/?project=language", "/alerts"):
        page.goto(server.url + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_runs_at_risk_come_first_until_they_are_snoozed(
    server, replay, scenarios, open_page, until
):
    replay(scenarios.failed())
    page = open_page(server.url)
    danger = page.locator("#danger")
    assert not danger.is_visible()
    replay(scenarios.leaking())
    until(danger.is_visible)
    assert "Runs out of memory in about 420 steps (" in danger.inner_text()
    page.goto(f"{server.url}/?status=failed")  # a filter hides runs at risk
    assert not danger.is_visible()
    page.goto(server.url)
    danger.get_by_role("link", name="gpt2-medium").click()
    page.get_by_role("button", name="Snooze 1 h").click()
    page.goto(server.url)
    assert not danger.is_visible()


def test_headings_sort_the_list_and_say_how(server, replay, scenarios, open_page):
    for scenario in (scenarios.lost_contact(), scenarios.failed(), scenarios.leaking()):
        replay(scenario)
    page = open_page(server.url)
    heading = page.get_by_role("columnheader", name="Peak memory")
    assert heading.get_attribute("aria-sort") is None
    heading.get_by_role("link").click()
    page.wait_for_url(re.compile("sort=-peak_ratio"))
    fullest_first = names(page)
    assert fullest_first[0] == "gpt2-medium, longer context"
    assert heading.get_attribute("aria-sort") == "descending"
    heading.get_by_role("link").click()
    page.wait_for_url(re.compile("sort=peak_ratio"))
    assert (names(page), heading.get_attribute("aria-sort")) == (fullest_first[::-1], "ascending")
    page.get_by_role("columnheader", name="Run").get_by_role("link").click()
    page.wait_for_url(re.compile("sort=name"))
    assert names(page) == sorted(names(page))
