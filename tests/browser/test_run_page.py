"""The run page in a real browser: the chart is drawn, zooms to single steps, updates, and has a
text.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from memagent.wire.messages import Event
from tests.browser.chart_reading import drag, pixels, top, wait_for_chart, window

HEAT_ROWS = """() => {
  const canvas = document.querySelector('#heat canvas');
  const { data } = canvas.getContext('2d').getImageData(canvas.width / 2, 0, 1, canvas.height);
  return [0.2, 0.6].map(share => data.slice(4 * Math.floor(canvas.height * share)).slice(0, 3).join());
}"""


def middle(element):
    box = element.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + 10


@pytest.mark.parametrize("dark", [False, True])
def test_the_chart_draws_curves_limit_prediction_forecast_and_markers(
    server, replay, scenarios, open_page, until, dark
):
    replay(scenarios.leaking())
    page = wait_for_chart(open_page(f"{server.url}/runs/k3v9leak"))
    if dark:  # while the page is open
        page.emulate_media(color_scheme="dark")
        until(lambda: pixels(page, "curve-allocated") > 150)
        assert pixels(page, "grid") > 500
        page.emulate_media(media="print")  # in light, and back to dark afterwards
        until(lambda: pixels(page, "curve-allocated") > 150)
        page.emulate_media(media="screen")
        until(lambda: pixels(page, "curve-allocated") > 150)
    for name in (
        "curve-allocated",
        "curve-peak",
        "curve-reserved",
        "curve-device",
        "curve-limit",
        "curve-predicted",
    ):
        assert pixels(page, name) > 150, name
    for number in (1, 2, 3):
        assert pixels(page, "curve-scalar", f".scalar-chart:nth-child({number})") > 100
    assert pixels(page, "phase-0") > 40  # five evaluations
    assert "eval" in page.locator("#chart-legend").inner_text()
    assert pixels(page, "bar-critical") > 300  # the forecast's line and the warning's marker
    assert window(page)[1:] == (1180, 1181)


def test_the_page_says_what_the_chart_shows(server, replay, scenarios, open_page):
    replay(scenarios.leaking())
    page = wait_for_chart(open_page(f"{server.url}/runs/k3v9leak"))
    assert page.locator(".headline").inner_text() == "Runs out of memory in about 420 steps (9 min)"
    assert (
        "limit reached at about step 1,598 (between 1,530 and 1,700)"
        in page.locator("#chart-summary").inner_text()
    )
    assert "Peak within the step" in page.locator("#chart-legend").inner_text()
    assert page.locator("#cause h2").inner_text() == "Likely cause: leak"
    assert page.locator(".scalar-chart h3").all_inner_texts() == [
        text
        for text in page.locator(".scalar-chart h3").all_inner_texts()
        if text.split("\n")[0] in ("grad_norm", "loss", "lr")
    ]
    assert page.locator(".scalar-chart canvas").count() == 3


def test_a_failed_run_shows_how_early_the_warning_was(server, replay, scenarios, open_page):
    replay(scenarios.died())
    page = wait_for_chart(open_page(f"{server.url}/runs/d1ed"))
    assert page.locator(".headline").inner_text() == "Out of memory in step 1,235"
    assert (
        page.locator(".headline-detail").first.inner_text()
        == "First warning 311 steps earlier, at step 924."
    )
    assert "First warning's forecast" in page.locator("#chart-legend").inner_text()
    assert pixels(page, "bar-warning") > 100


def test_a_one_step_spike_in_a_hundred_thousand_is_drawn_and_found(
    server, replay, scenarios, open_page, until
):
    replay(scenarios.long())
    page, responses = open_page(), []
    page.on("response", lambda response: responses.append(response))
    page.goto(f"{server.url}/runs/l0ng")
    wait_for_chart(page)
    series = [response.json() for response in responses if "/series?" in response.url]
    assert [len(item["step"]) <= 1000 for item in series] == [True, True]  # memory and scalars
    assert len(responses) < 21
    assert window(page)[2] == 100_001
    assert top(page, "curve-peak") < 0.3  # the spike reaches 7 of 8 GiB
    [drawn] = [item for item in series if "peak_allocated_bytes" in item["series"]]
    row = next(
        row
        for row, peak in enumerate(drawn["series"]["peak_allocated_bytes"]["max"])
        if peak > 6 * 2**30
    )
    apex, steps_of_the_spike = drawn["step"][row], (drawn["step"][row - 1] + 1, drawn["step"][row])
    first, last, _ = window(page)
    share = (apex - first) / (last - first)
    over = page.locator("#memory-chart .u-over").bounding_box()
    page.mouse.move(over["x"] + share * over["width"], over["y"] + 60)
    text = "Steps {:,} to {:,}".format(*steps_of_the_spike)
    until(lambda: text in page.locator("#memory-chart .tip").inner_text())
    with page.expect_response(lambda response: "device=host" in response.url):
        drag(page, share, share + 0.01)  # from where it is drawn
    until(lambda: window(page)[2] < 100_001)
    assert window(page)[0] <= 54_321 <= window(page)[1] and top(page, "curve-peak") < 0.3
    page.locator("#memory-chart .u-over").dblclick()
    until(lambda: window(page)[2] == 100_001)
    urls = []
    page.on("request", lambda request: "/series?" in request.url and urls.append(request.url))
    for _ in range(4):
        first, last, before = window(page)
        share = (54_321 - first) / (last - first)
        with page.expect_response(lambda response: "device=host" in response.url):
            drag(page, max(0.001, share - 0.02), min(0.999, share + 0.02))
        until(lambda before=before: window(page)[2] < before)
        first, last, samples = window(page)
        assert first <= 54_321 <= last
        if samples == last - first + 1 < 400:
            break
    assert samples == last - first + 1 < 400  # single steps
    assert all("from=" in url and "to=" in url for url in urls)
    assert top(page, "curve-peak") < 0.3
    page.locator("#memory-chart .u-over").dblclick()
    until(lambda: window(page)[2] == 100_001)
    assert "from=" not in page.url


def test_a_zoomed_page_can_be_shared_and_reset_by_keyboard(
    server, replay, scenarios, open_page, until
):
    replay(scenarios.healthy())
    page = wait_for_chart(open_page(f"{server.url}/runs/h8healthy?from=100&to=300"))
    assert window(page) == (100, 300, 201)
    page.locator("#zoom-reset").focus()
    page.keyboard.press("Enter")
    until(lambda: window(page)[1:] == (2400, 2401))
    page.locator("#zoom-last").focus()
    page.keyboard.press("Enter")
    until(lambda: window(page) == (2200, 2400, 201))
    assert "from=2200&to=2400" in page.url


def test_a_selection_in_a_scalar_zooms_all_charts_to_the_same_steps(
    server, replay, scenarios, open_page, until
):
    replay(scenarios.healthy())
    page = wait_for_chart(open_page(f"{server.url}/runs/h8healthy"))
    queries = []
    of_both = re.compile(
        r"/series\?(?!.*activations_bytes).*&from=(.*)"
    )  # the stacked components load when scrolled into view
    page.on("request", lambda request: queries.extend(of_both.findall(request.url)))
    drag(page, 0.25, 0.5)
    until(lambda: window(page)[2] < 700)
    first, last, samples = window(page)
    assert (abs(first - 600) < 60, abs(last - 1200) < 60, samples == last - first + 1) == (
        True,
        True,
        True,
    )
    assert len(queries) == 2  # memory and scalars, once each
    assert len(set(queries)) == 1
    over = page.locator(".scalar-chart .u-over").first
    over.scroll_into_view_if_needed()
    plot = over.bounding_box()
    page.mouse.move(plot["x"] + plot["width"] * 0.4, plot["y"] + 20)
    page.mouse.down()
    page.mouse.move(plot["x"] + plot["width"] * 0.6, plot["y"] + 20, steps=4)
    page.mouse.up()
    until(lambda: window(page)[2] < 200)
    assert first < window(page)[0] < window(page)[1] < last


def test_a_curve_is_hidden_by_its_legend(server, replay, scenarios, open_page, until):
    replay(scenarios.healthy())
    page = wait_for_chart(open_page(f"{server.url}/runs/h8healthy"))
    before = pixels(page, "curve-device")
    entry = page.get_by_role("button", name=re.compile("Device used"))
    entry.focus()
    page.keyboard.press("Enter")
    assert entry.get_attribute("aria-pressed") == "false"
    until(lambda: pixels(page, "curve-device") == 0)
    entry.click()
    until(lambda: pixels(page, "curve-device") == before)


def test_the_scale_follows_limit_or_data(server, replay, scenarios, open_page, until):
    replay(scenarios.healthy())
    page = wait_for_chart(open_page(f"{server.url}/runs/h8healthy"))
    button = page.locator("#scale-limit")
    assert button.get_attribute("aria-pressed") == "true"
    before = top(page, "curve-device")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    until(lambda: top(page, "curve-device") < before)


def test_another_rank_is_one_click_away(server, replay, scenarios, open_page):
    replay(scenarios.two_ranks())
    page = wait_for_chart(open_page(f"{server.url}/runs/ddp2"))
    assert page.locator("#chart-summary").inner_text().startswith("Rank 1 on")  # the fuller one
    page.get_by_role("link", name=re.compile("Rank 0")).click()
    page.wait_for_url(re.compile("rank=0"))
    wait_for_chart(page)
    assert page.locator("#chart-summary").inner_text().startswith("Rank 0 on")


def test_ranks_are_a_heat_map_and_a_band_by_step_or_by_clock(
    server, replay, scenarios, open_page, until
):
    replay(scenarios.two_ranks())
    page = wait_for_chart(open_page(f"{server.url}/runs/ddp2", dark=True))
    assert (
        page.locator("#imbalance").inner_text()
        == "Uneven: rank 1 peaks at 58.00 GiB, 32 % above rank 0."
    )
    page.wait_for_selector("#heat[data-drawn='2']")
    emptier, fuller = page.evaluate(HEAT_ROWS)
    assert emptier != fuller
    page.locator("#ranks-table summary").click()
    assert [
        row.split("\t")[0] for row in page.locator("#heat-table tbody").inner_text().splitlines()
    ] == ["0", "1"]
    assert page.locator("#heat-table tbody tr").first.locator("td").count() == 8
    page.mouse.move(*middle(page.locator("#heat canvas")))
    assert "% " in page.locator("#heat-at").inner_text() + " "

    page.get_by_role("button", name="Time").click()
    urls = []
    page.on("request", lambda request: urls.append(request.url))
    drag(page, 0.25, 0.5)
    until(lambda: window(page)[2] < 300)
    first, last, _ = window(page)
    assert (abs(first - 160) < 30, abs(last - 320) < 30) == (
        True,
        True,
    )  # steps, though they were selected by time
    until(lambda: any("/ranks?" in url and f"from={first}&to={last}" in url for url in urls))
    page.locator("#zoom-reset").click()
    page.get_by_role("button", name="All ranks").click()
    until(lambda: "Range of 2 ranks" in page.locator("#chart-legend").inner_text())
    assert "axis=time" in page.url and "ranks=all" in page.url
    until(lambda: pixels(page, "curve-peak") > 300)
    assert pixels(page, "curve-device") == 0


def test_ranks_that_differ_are_named_beside_the_range_of_all(
    server, replay, scenarios, open_page, until
):
    replay(scenarios.eight_ranks())
    page = wait_for_chart(open_page(f"{server.url}/runs/fsdp8?ranks=all"))
    legend = page.locator("#chart-legend")
    until(lambda: "Range of 8 ranks" in legend.inner_text())
    names = legend.get_by_role("button").evaluate_all(
        "all => all.map(b => b.firstChild.nextSibling.textContent)"
    )
    assert names == ["Rank 3", "Median of the ranks", "Range of 8 ranks"]
    assert "Uneven: rank 3" in page.locator("#imbalance").inner_text()
    for curve in ("curve-peak", "run-1"):
        until(lambda curve=curve: pixels(page, curve) > 300)


def test_the_chart_is_saved_as_a_picture_and_the_samples_as_a_table(
    server, replay, scenarios, open_page
):
    replay(scenarios.failed())
    page = wait_for_chart(open_page(f"{server.url}/runs/fa1led"))
    with page.expect_download() as saved:
        page.get_by_role("button", name="PNG of the chart").click()
    assert saved.value.suggested_filename == "fa1led.png"
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as saved:
        page.get_by_role("link", name="CSV").click()
    assert saved.value.suggested_filename.endswith(".csv")
    assert len(Path(saved.value.path()).read_text().splitlines()) == 79
    with page.expect_download() as saved:
        page.get_by_role("link", name="Parquet").click()
    assert Path(saved.value.path()).read_bytes().startswith(b"PAR1")


def test_the_page_updates_without_a_reload(server, replay, scenarios, open_page, until):
    scenario = scenarios.healthy()
    columns = scenario.streams[0, scenario.devices[0]["id"]]
    scenario.streams = {
        key: {name: values[:200] for name, values in item.items()}
        for key, item in scenario.streams.items()
    }
    replay(scenario)
    page = wait_for_chart(open_page(f"{server.url}/runs/h8healthy"))
    page.evaluate(
        "window.untouched = true; document.querySelector('#memory-chart canvas').untouched = true"
    )
    page.locator("#streams a").first.focus()
    scenario.send(
        server,
        0,
        scenario.devices[0]["id"],
        {name: values[200:320] for name, values in columns.items()},
        seq=77,
    )
    until(lambda: window(page)[1] == 319)
    assert "319" in page.locator("#streams").inner_text()
    assert page.evaluate(
        "window.untouched && document.querySelector('#memory-chart canvas').untouched"
    )
    assert page.evaluate("document.activeElement.closest('#streams') !== null")


def test_scalars_without_memory_are_drawn_over_their_steps(server, replay, scenarios, open_page):
    """As of a run that was imported from another tracker."""
    scenario = scenarios.healthy()
    scenario.streams = {key: item for key, item in scenario.streams.items() if "scalars" in key}
    scenario.forecasts, scenario.prediction = [], None
    scenario.finish = {"status": "completed", "step": 2400}
    replay(scenario)
    page = open_page(f"{server.url}/runs/h8healthy")
    page.locator("#scalar-charts canvas").first.wait_for()
    assert not page.locator("#memory-chart").is_visible()
    assert page.evaluate("document.getElementById('memory-chart').shown.range[1]") > 2000


def test_the_chart_appears_with_the_first_sample(server, replay, scenarios, open_page):
    scenario = scenarios.healthy()
    streams, scenario.streams, scenario.forecasts = scenario.streams, {}, []
    replay(scenario)
    page = open_page(f"{server.url}/runs/h8healthy")
    assert "appears with the first sample" in page.locator("#chart-note").inner_text()
    assert page.locator("#memory-chart canvas").count() == 0
    scenario.streams = streams
    replay(scenario)
    wait_for_chart(page)
    assert window(page)[1:] == (2400, 2401)


def test_untrusted_text_is_escaped(server, replay, scenarios, open_page):
    replay(scenarios.hostile())
    replay(scenarios.lost_contact())
    page = open_page(width=390)
    for path in (
        "/",
        "/alerts",
        "/runs/h0stile",
        "/compare?runs=h0stile,l0st",
        "/?q=%3Cscript%3Ewindow.hacked%3D1%3C/script%3E",
    ):
        page.goto(server.url + path)
        if path.startswith("/runs"):
            wait_for_chart(page)
            page.wait_for_selector(".scalar-chart canvas")
            assert page.locator("h1").inner_text().startswith("<script>")
        if path.startswith("/compare"):
            page.wait_for_selector("#compare-legend button")
        assert page.evaluate("window.hacked === undefined && !document.querySelector('img[src=x]')")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_a_phone_shows_everything_without_horizontal_scrolling(
    server, replay, scenarios, open_page
):
    for scenario in (scenarios.leaking(), scenarios.died()):
        replay(scenario)
    page = open_page(width=390, height=844, device_scale_factor=2, is_mobile=True, has_touch=True)
    for path in ("/", "/alerts", "/runs/k3v9leak", "/runs/d1ed", "/login", "/"):
        page.goto(server.url + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_the_chart_follows_the_size_of_the_window(server, replay, scenarios, open_page, until):
    replay(scenarios.healthy())
    page = wait_for_chart(open_page(f"{server.url}/runs/h8healthy"))
    page.set_viewport_size({"width": 700, "height": 900})
    until(lambda: page.locator("#memory-chart .uplot").bounding_box()["width"] < 700)
    assert page.evaluate("document.documentElement.scrollWidth") <= 700


def test_a_forecast_beyond_the_chart_is_described_in_text_and_not_in_the_legend(
    server, replay, scenarios, open_page
):
    replay(scenarios.two_ranks())
    page = wait_for_chart(open_page(f"{server.url}/runs/ddp2"))
    assert "limit reached at about step 5,600" in page.locator("#chart-summary").inner_text()
    assert "Forecast" not in page.locator("#chart-legend").inner_text()


def test_an_oom_is_reported_with_the_largest_tensors(server, replay, scenarios, open_page):
    replay(scenarios.died())
    page = open_page(f"{server.url}/runs/d1ed")
    report = page.locator("#oom-report")
    assert "Out of memory in backward of step 1,235 on build-box" in report.inner_text()
    assert "Leak, forecast since step 610" in report.inner_text()
    assert "train.py:42 keeps outputs: list of 1180" in report.inner_text()
    assert "Without this growth, about 1.46 GiB of 8.00 GiB would" in report.inner_text()
    source = report.get_by_label("Source around line 42")
    assert source.inner_text().split("\n")[1] == "41if step % 10 == 0:"
    assert source.locator(".is-suspect").inner_text().startswith("42    outputs.append(logits)")
    assert page.locator("#suspects .source").count() == 0, "it is shown once"
    code = report.get_by_label("Code of the fix")
    assert "outputs.append(logits.detach())" in code.inner_text()
    box = report.bounding_box()
    assert box["y"] + box["height"] <= 900, "what to change is on the first screen"
    assert not report.locator("td", has_text="1024 × 256").is_visible()
    report.locator("summary", has_text="Evidence").click()
    assert "8.0 MiB were requested with 3.0 MiB free" in report.inner_text()
    assert "DefaultCPUAllocator: can't allocate memory" in report.inner_text()
    assert report.locator("td", has_text="1024 × 256").is_visible()


def test_suspects_are_named_and_the_flame_graph_is_drawn(server, replay, scenarios, open_page):
    replay(scenarios.leaking())
    page = open_page(f"{server.url}/runs/k3v9leak")
    assert "train.py:88 in train_epoch" in page.locator("#suspects").inner_text()
    assert "train.py:88 keeps" in page.locator("#head").inner_text(), (
        "at three in the morning nobody scrolls"
    )
    assert not page.locator("#suspects ins").count(), "the card of the cause has it"
    [source] = page.locator("#suspects .source").all()
    assert "88total_loss += loss" in source.inner_text()
    assert "<b>optimizer</b>" in source.inner_text()
    assert page.locator("#cause pre ins").inner_text() == "+ total_loss += loss.detach()"
    blocks = page.locator("#flame rect")
    assert blocks.count() >= 12
    outermost = blocks.first.bounding_box()["width"]
    assert outermost > 900 and blocks.nth(2).bounding_box()["width"] < outermost
    assert (
        page.locator("#flame title", has_text="attention (model.py:90): 9.00 GiB (33 %)").count()
        == 1
    )


def test_the_page_says_what_a_diagnosis_does(server, replay, scenarios, open_page):
    scenario = scenarios.two_ranks()
    text = "Looking for what grows: steps 620 to 640."
    event = Event(kind="diagnosis", step=620, data={"state": "counting", "text": text})
    replay(replace(scenario, events=[*scenario.events, event]))
    page = open_page(f"{server.url}/runs/ddp2")
    assert page.locator("#suspects p").all_inner_texts() == [text]
    assert text in page.locator(".events").inner_text()


def test_an_ended_run_promises_no_further_diagnosis(server, replay, scenarios, open_page):
    scenario = scenarios.two_ranks()
    text = (
        "No suspect was found in steps 620 to 640. If memory still grows, another method follows."
    )
    event = Event(kind="diagnosis", step=640, data={"state": "found", "text": text})
    end = {"status": "completed", "step": 640}
    replay(replace(scenario, events=[*scenario.events, event], finish=end))
    page = open_page(f"{server.url}/runs/ddp2")
    assert page.locator("#suspects p").all_inner_texts() == [
        "No suspect was found in steps 620 to 640."
    ]


def test_a_diagnosis_under_way_at_the_end_does_not_deny_what_another_found(
    server, replay, scenarios, open_page
):
    scenario = scenarios.leaking()
    data = {"state": "counting", "text": "Looking for what grows: steps 1,700 to 1,720."}
    event = Event(kind="diagnosis", step=1_700, data=data)
    end = {"status": "failed", "step": 1_724}
    replay(replace(scenario, events=[*scenario.events, event], finish=end))
    text = open_page(f"{server.url}/runs/k3v9leak").locator("#suspects").inner_text()
    assert "A leak diagnosis was under way when the run ended." in text
    assert "total_loss" in text and "before its leak diagnosis" not in text


def test_components_are_stacked_over_steps_when_the_chart_scrolls_into_view(
    server, replay, scenarios, open_page, until
):
    replay(scenarios.leaking())
    page, urls = open_page(), []
    page.on(
        "request", lambda request: "activations_bytes" in request.url and urls.append(request.url)
    )
    page.goto(f"{server.url}/runs/k3v9leak")
    wait_for_chart(page)
    assert urls == []
    place = page.locator("#stack-chart")
    place.scroll_into_view_if_needed()
    page.wait_for_selector("#stack-chart[data-drawn]")
    assert (
        place.get_attribute("data-drawn")
        == "parameters,gradients,optimizer_state,buffers,other,activations"
    )
    legend = page.locator("#stack-legend").inner_text()
    assert "optimizer state\n2.64 GiB" in legend
    assert "other tensors\n25.5" in legend  # 880 steps that leaked 30 MiB each

    plot = place.locator(".u-over").bounding_box()
    page.mouse.move(plot["x"] + 0.1 * plot["width"], plot["y"] + 20)
    page.mouse.down()
    page.mouse.move(plot["x"] + 0.3 * plot["width"], plot["y"] + 20, steps=4)
    page.mouse.up()
    until(lambda: window(page)[2] < 500)  # all charts show the selection of one
    until(
        lambda: window(page) and len(urls) == 2
    )  # request events arrive while the page is evaluated
    first, last, _ = window(page)
    assert f"from={first}&to={last}" in urls[1]
    page.get_by_role("button", name="Time").click()
    place.scroll_into_view_if_needed()  # the button scrolled the chart out of view
    until(lambda: window(page) and len(urls) == 3)

    def is_whole_after_a_double_click():  # repeated, if it hit the chart of the other axis before its removal
        place.locator(".u-over").dblclick()
        return window(page)[2] == 1181

    until(is_whole_after_a_double_click)


@pytest.mark.parametrize("has_clipboard", [True, False])
def test_code_is_copied_without_its_line_numbers(
    server, replay, scenarios, open_page, until, has_clipboard
):
    replay(scenarios.leaking())
    page = open_page()
    if has_clipboard:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    else:  # as for plain HTTP beyond this machine
        page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.goto(f"{server.url}/runs/k3v9leak")
    box = page.locator("#suspects .copyable").first
    box.hover()
    box.get_by_role("button", name="Copy").click()
    until(lambda: box.get_by_role("button").inner_text() == "Copied")
    assert page.evaluate("document.activeElement.className") == "copy"
    page.evaluate("document.body.append(document.createElement('textarea'))")
    page.locator("body > textarea").focus()
    page.keyboard.press("Control+V")
    assert page.locator("body > textarea").input_value().splitlines()[2] == "total_loss += loss"
