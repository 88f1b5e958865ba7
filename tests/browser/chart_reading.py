"""Read and use the charts of pages: pixels by their color, windows of steps, and drags."""

from __future__ import annotations

import re

PIXELS = """([r, g, b, place]) => {
  const canvas = document.querySelector(`${place} canvas`);
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  const found = [];
  for (let i = 0; i < data.length; i += 4)
    if (data[i + 3] > 200 && Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 24) found.push(i / 4);
  return { count: found.length, top: found.length ? Math.floor(found[0] / canvas.width) / canvas.height : null };
}"""


def wait_for_chart(page):
    page.wait_for_selector("#memory-chart[data-drawn]")
    return page


def color(page, name):
    """A custom property as [r, g, b]."""
    text = page.evaluate(
        "name => getComputedStyle(document.documentElement).getPropertyValue(name).trim()",
        f"--{name}",
    )
    assert re.fullmatch("#[0-9a-f]{6}", text)
    return [int(text[place : place + 2], 16) for place in (1, 3, 5)]


def pixels(page, name, place="#memory-chart"):
    """Return the number of pixels of a chart with that color."""
    return page.evaluate(PIXELS, [*color(page, name), place])["count"]


def top(page, name):
    """Return the position of the highest pixel of that color: 0 at the upper edge, 1 at the
    lower.
    """
    return page.evaluate(PIXELS, [*color(page, name), "#memory-chart"])["top"]


def window(page):
    """Return the first and last step of the chart, and the number of samples."""
    facts = page.locator("#memory-chart").evaluate("element => ({...element.dataset})")
    return int(facts["from"]), int(facts["to"]), int(facts["samples"])


def drag(page, start, end):
    """Drag over the chart's plot; `from` and `to` are shares of its width."""
    box = page.locator("#memory-chart .u-over").bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], y, steps=5)
    page.mouse.up()
