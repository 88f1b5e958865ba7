"""The compare page in a real browser: a curve for each run, with alignment in the address."""

from __future__ import annotations

import re

COLOURS = """() => {
  const canvas = document.querySelector('#compare-chart canvas');
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  const tones = [0, 1, 2].map(tone => getComputedStyle(document.documentElement).getPropertyValue(`--run-${tone}`).trim());
  return tones.map(tone => {
    const [r, g, b] = [1, 3, 5].map(place => parseInt(tone.slice(place, place + 2), 16));
    let [count, right] = [0, 0];
    for (let i = 0; i < data.length; i += 4)
      if (data[i + 3] > 200 && Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 24) {
        count += 1;
        right = Math.max(right, (i / 4) % canvas.width);
      }
    return { count, right: right / canvas.width };
  });
}"""


def test_curves_are_drawn_and_aligned_by_step_time_or_tokens(
    server, scenarios, replay, open_page, until
):
    for scenario in scenarios.sweep():
        replay(scenario)
    page = open_page(f"{server.url}/compare?runs=sweep0&runs=sweep1")
    chart = page.locator("#compare-chart")
    page.wait_for_selector("#compare-chart[data-drawn='2']")
    first, second, third = page.evaluate(COLOURS)
    assert first["count"] > 300 and second["count"] > 300 and third["count"] == 0
    assert first["right"] < 0.85 < second["right"]  # 300 steps and 400
    assert "batch_size\t16\t8" in page.locator("#differences").inner_text()

    page.get_by_role("button", name="Tokens").click()
    until(lambda: chart.get_attribute("data-by") == "tokens")
    first, second, _ = page.evaluate(COLOURS)
    assert first["right"] < 0.65 < 0.9 < second["right"]  # the second has twice the tokens
    page.get_by_label("Curve", exact=True).select_option("scalar:loss")
    until(lambda: chart.get_attribute("data-curve") == "scalar:loss")
    assert page.url.endswith("/compare?runs=sweep0,sweep1&by=tokens&curve=scalar%3Aloss")
    page.reload()
    page.wait_for_selector(
        "#compare-chart[data-drawn='2'][data-by='tokens'][data-curve='scalar:loss']"
    )
    assert page.get_by_role("button", name="Tokens").get_attribute("aria-pressed") == "true"

    page.get_by_role("button", name="Time").click()
    until(lambda: chart.get_attribute("data-by") == "time")
    box = page.locator("#compare-chart .u-over").bounding_box()
    urls = []
    page.on("request", lambda request: "/series?" in request.url and urls.append(request.url))
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40, steps=3)
    page.mouse.up()
    until(lambda: chart.get_attribute("data-from") not in (None, ""))
    assert len(urls) == 2
    assert all(re.search(r"from=\d+&to=\d+", url) for url in urls)


def test_three_runs_fit_on_a_phone(server, scenarios, replay, open_page):
    for scenario in (*scenarios.sweep(), scenarios.leaking()):
        replay(scenario)
    page = open_page(f"{server.url}/compare?runs=sweep0,sweep1,k3v9leak", width=390, height=844)
    boxes = page.locator(".table-box").evaluate_all(
        "all => all.map(b => b.scrollWidth - b.clientWidth)"
    )
    assert len(boxes) == 3 and boxes[1:] == [0, 0], "components, and peaks as cards"
    assert "Headroom" in page.locator("#compared").inner_text()
