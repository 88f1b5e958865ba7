"""Sample columns into a forecaster."""

from __future__ import annotations

from memagent.forecast import Forecaster, feed

GIB = 2**30


def test_it_gives_a_forecast_a_row_and_takes_the_hosts_memory_by_its_wire_name():
    columns = {"step": [1, 2, 3], "allocated_bytes": [GIB, GIB, None], "host_rss_bytes": [GIB] * 3}
    found = list(feed(Forecaster(40 * GIB, host_limit_bytes=64 * GIB), columns))
    assert [forecast.step for forecast in found] == [1, 2, 3]
    assert {forecast.used_bytes for forecast in found} == {GIB}


def test_it_passes_on_that_the_optimizer_has_not_stepped_yet():
    columns = {"step": [0], "allocated_bytes": [30 * GIB], "optimizer_steps": [0]}
    (forecast,) = feed(Forecaster(40 * GIB, optimizer_state_bytes=20 * GIB), columns)
    assert forecast.cause == "optimizer_state"
