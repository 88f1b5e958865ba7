"""First loads of the pages in Chromium: first paint, time until the chart is drawn, bytes.

1. Each load has a new browser context: nothing is in a cache.
2. The server has 300 runs in 20 projects, one of them of a million steps.
3. A page of plain text from the same server is the reference: its paint is the browser's own cost.

`python -m benchmarks.server.first_loads [--quick]` runs it alone. It needs playwright and Chromium.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import Figure, from_samples, table
from benchmarks.machine import describe
from benchmarks.server.reads import fill_list, fill_long_run
from benchmarks.server.real_server import fresh_database, running_server

TITLE = "first loads in Chromium"
STEPS, STEPS_QUICK = 1_000_000, 5_000
RUNS = 300
LOADS, LOADS_QUICK = 9, 2
PAINT_MS, DRAWN_MS = 500.0, 700.0
REFERENCE = "/healthz"
CHART = "#memory-chart[data-drawn]"
PAGES: dict[str, tuple[str, str | None]] = {
    "plain text": (REFERENCE, None),
    "runs": ("/", None),
    "groups": ("/?group=status,project", None),
    "a million steps": ("/runs/long", CHART),
    "alerts": ("/alerts", None),
    "waste": ("/waste", None),
    "estimate": ("/estimate?model=gpt2-xl&batch=4&gpu=rtx4090", None),
    "settings": ("/settings", None),
    "manual": ("/docs", None),
}
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


@dataclass(frozen=True)
class Load:
    """One load. Times are milliseconds since the navigation began."""

    paint_ms: float
    drawn_ms: float | None
    wire_bytes: int
    requests: int


def measure(quick: bool) -> list[Figure]:
    with fresh_database() as database:
        fill_list(database, RUNS)
        fill_long_run(database, STEPS_QUICK if quick else STEPS)
        with running_server(database.url) as server, _chromium() as browser:
            loads = {name: [_load(browser, server.url, *page)] for name, page in PAGES.items()}
            for _ in range(LOADS_QUICK if quick else LOADS):
                # in turns, so that a drift of the machine's speed is in all of them
                for name, page in PAGES.items():
                    loads[name].append(_load(browser, server.url, *page))
    return [figure for name, some in loads.items() for figure in _figures(name, some[1:])]


def _figures(name: str, loads: list[Load]) -> Iterator[Figure]:
    size = f"{loads[0].wire_bytes / 1000:.0f} kB in {loads[0].requests} requests"
    goals = None if name == "plain text" else PAINT_MS
    paints = [load.paint_ms for load in loads]
    yield from_samples(f"{name}: first paint", "ms", paints, goal=goals, note=size)
    drawn = [load.drawn_ms for load in loads if load.drawn_ms is not None]
    if drawn:
        yield from_samples(f"{name}: chart drawn", "ms", drawn, goal=DRAWN_MS)


def _load(browser: Any, url: str, path: str, chart: str | None) -> Load:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        session, sizes = context.new_cdp_session(page), []
        session.on(
            "Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"])
        )
        session.send("Network.enable")
        page.goto(url + path)
        drawn_ms = None
        if chart:
            page.wait_for_selector(chart)
            drawn_ms = page.evaluate("performance.now()")
        page.wait_for_load_state("networkidle")
        paint_ms = page.evaluate(_PAINT)
        return Load(float(paint_ms or 0.0), drawn_ms, int(sum(sizes)), len(sizes))
    finally:
        context.close()


@contextmanager
def _chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    program = os.environ.get("MEMAGENT_TEST_CHROMIUM") or next(
        filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))), None
    )
    if program is None:
        raise RuntimeError("Chromium is not installed: set MEMAGENT_TEST_CHROMIUM to its path")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few loads of a short run")
    figures, machine = measure(parser.parse_args().quick), describe()
    print(f"{machine['processor']}, {machine['cores']} cores, load {machine['load']:.1f}")
    print(table({TITLE: figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
