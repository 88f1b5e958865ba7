"""What the first load of each page costs: its bytes on the wire and its requests."""

from __future__ import annotations

import pytest

MAX_BYTES = 120_000
MAX_REQUESTS = 10
PAGES = (
    "/", "/runs/k3v9leak", "/runs/d1ed", "/runs/ddp2", "/compare?runs=sweep0,sweep1,k3v9leak", "/alerts",
    "/estimate?model=gpt2-xl&batch=4&gpu=rtx4090", "/settings", "/docs", "/docs/http",
)  # fmt: skip
CHARTS = {"/runs/": "#memory-chart[data-drawn]", "/compare": "#compare-chart[data-drawn]"}


@pytest.fixture
def weigh(open_page, until):
    """weigh(url, chart): {address: bytes on the wire} of a first load, headers included."""

    def weigh(url, chart=None):
        page = open_page()
        session = page.context.new_cdp_session(page)
        addresses, sizes = {}, {}
        session.on(
            "Network.responseReceived",
            lambda event: addresses.update({event["requestId"]: event["response"]["url"]}),
        )
        session.on(
            "Network.loadingFinished",
            lambda event: sizes.update({event["requestId"]: event["encodedDataLength"]}),
        )
        session.send("Network.enable")
        page.goto(url)
        if chart:
            page.wait_for_selector(chart)
        page.wait_for_load_state("networkidle")
        until(lambda: addresses.keys() <= sizes.keys())
        return {addresses[request]: size for request, size in sizes.items()}

    return weigh


def test_the_first_load_of_each_page_is_light(server, replay, scenarios, weigh):
    runs = (scenarios.died(), scenarios.two_ranks(), scenarios.leaking(), *scenarios.sweep())
    for scenario in runs:
        replay(scenario)
    for path in PAGES:
        chart = next((chart for start, chart in CHARTS.items() if path.startswith(start)), None)
        loaded = weigh(server.url + path, chart)
        assert sum(loaded.values()) <= MAX_BYTES, (path, loaded)
        assert len(loaded) <= MAX_REQUESTS, (path, list(loaded))
