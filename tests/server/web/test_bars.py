"""Bars and curves of memory."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memagent.units import GIB
from memagent_server.web import bars
from tests.server.web.schema_examples import LEAK_SUMMARY, RUN


def a_run(**changes):
    sizes = {"peak_bytes": 6 * GIB, "limit_bytes": 8 * GIB, "predicted_peak_bytes": 2 * GIB}
    return replace(RUN, **{**sizes, **changes})


def test_a_memory_bar_is_in_per_cent_of_the_limit():
    assert bars.memory_bar(a_run()) == bars.MemoryBar(75.0, 25.0, "plain", "6.00 of 8.00 GiB")


def test_a_memory_bar_never_leaves_its_track():
    bar = bars.memory_bar(a_run(peak_bytes=9 * GIB, predicted_peak_bytes=90 * GIB))
    assert (bar.peak, bar.predicted) == (100.0, 100.0)


def test_a_memory_bar_does_without_limit_and_prediction():
    bar = bars.memory_bar(a_run(limit_bytes=None, predicted_peak_bytes=None))
    assert (bar.peak, bar.predicted, bar.text) == (0.0, None, "6.00 GiB")
    assert bars.memory_bar(a_run(peak_bytes=None)) is None


@pytest.mark.parametrize(
    ("changes", "tone"),
    [
        ({"status": "oom"}, "critical"),
        ({"forecast": replace(LEAK_SUMMARY, level="critical")}, "critical"),
        ({"forecast": replace(LEAK_SUMMARY, level="ok")}, "plain"),
        ({"forecast": LEAK_SUMMARY, "status": "completed"}, "plain"),
    ],
)
def test_a_memory_bar_is_colored_by_risk_not_by_fullness(changes, tone):
    assert bars.memory_bar(a_run(peak_bytes=8 * GIB, **changes)).tone == tone


def test_a_sparkline_goes_from_edge_to_edge_and_from_nothing_to_its_peak():
    line = bars.sparkline([None, 50, 100, None, 0])
    assert line.line == "0.0,12.5 33.3,2.0 100.0,23.0"
    assert line.area == "0,24 0.0,12.5 33.3,2.0 100.0,23.0 100,24"


@pytest.mark.parametrize("peaks", [None, [], [5], [None, 5, None]])
def test_one_value_makes_no_sparkline(peaks):
    assert bars.sparkline(peaks) is None


@pytest.mark.parametrize(
    ("peak", "predicted", "label"),
    [
        (143, 100, ("+43 %", "notice")),
        (88, 100, ("−12 %", "plain")),
        (101, 100, ("as predicted", "plain")),
        (None, 100, None),
        (100, None, None),
    ],
)
def test_a_run_is_compared_with_its_prediction(peak, predicted, label):
    run = a_run(peak_bytes=peak, predicted_peak_bytes=predicted)
    assert bars.residual_label(run) == label
