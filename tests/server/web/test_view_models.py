"""View models: widths, rows and markers from plain values."""

from __future__ import annotations

import pytest

from memagent.units import GIB, MIB
from memagent_server.web import view_models

WARNING = {
    "rank": 0, "device": "host", "level": "warning", "step": 90, "used_bytes": 5, "limit_bytes": 9, "eta_step": 120.0, "eta_low": 100.0,
    "eta_high": 150.0, "growth_bytes_per_step": 0.1, "cause": "leak",
}  # fmt: skip


def a_run(**changes):
    run = {
        "status": "running",
        "peak_bytes": 6 * GIB,
        "limit_bytes": 8 * GIB,
        "predicted_peak_bytes": 2 * GIB,
    }
    return {**run, "forecast": None, **changes}


def a_stream(rank=0, device="host", **changes):
    stream = {
        "rank": rank,
        "device": device,
        "kind": "host",
        "peak_bytes": 5,
        "limit_bytes": 10,
        "first_step": 0,
        "latest": {},
        "last_step": 100,
    }
    return {**stream, **changes}


def test_a_memory_bar_is_in_per_cent_of_the_limit():
    assert view_models.memory_bar(a_run()) == view_models.MemoryBar(
        75.0, 25.0, "plain", "6.00 of 8.00 GiB"
    )


def test_a_memory_bar_never_leaves_its_track():
    bar = view_models.memory_bar(a_run(peak_bytes=9 * GIB, predicted_peak_bytes=90 * GIB))
    assert (bar.peak, bar.predicted) == (100.0, 100.0)


def test_a_memory_bar_does_without_limit_and_prediction():
    bar = view_models.memory_bar(a_run(limit_bytes=None, predicted_peak_bytes=None))
    assert (bar.peak, bar.predicted, bar.text) == (0.0, None, "6.00 GiB")
    assert view_models.memory_bar(a_run(peak_bytes=None)) is None


@pytest.mark.parametrize(
    ("changes", "tone"),
    [
        ({"status": "oom"}, "critical"),
        ({"forecast": {"level": "critical"}}, "critical"),
        ({"forecast": {"level": "ok"}}, "plain"),
        ({"forecast": {"level": "critical"}, "status": "completed"}, "plain"),
    ],
)
def test_a_memory_bar_is_colored_by_risk_not_by_fullness(changes, tone):
    assert view_models.memory_bar(a_run(peak_bytes=8 * GIB, **changes)).tone == tone


def test_components_are_listed_with_their_prediction():
    row = {
        "component": "optimizer_state",
        "predicted_bytes": 50 * MIB,
        "observed_bytes": 100 * MIB,
        "residual_bytes": 50 * MIB,
    }
    level = {
        "level": "device",
        "predicted_bytes": 200 * MIB,
        "observed_bytes": None,
        "residual_bytes": None,
    }
    level |= {"low_bytes": 190 * MIB, "high_bytes": 210 * MIB}
    phase = {
        "phase": "my_eval",
        "predicted_bytes": None,
        "observed_bytes": 100 * MIB,
        "residual_bytes": None,
    }
    compared = {"components": [row], "levels": [level], "phases": [phase]}
    assert view_models.compared_groups(compared) == [
        (
            "Components",
            [
                view_models.ComparedRow(
                    "optimizer state", "50.0 MiB", "100 MiB", "+50.0 MiB", "warning", 25.0, 50.0
                )
            ],
        ),
        (
            "Peak",
            [
                view_models.ComparedRow(
                    "device",
                    "200 MiB",
                    "–",
                    "–",
                    "plain",
                    100.0,
                    None,
                    "9 in 10 runs: 190 MiB to 210 MiB",
                )
            ],
        ),
        (
            "Peak by phase",
            [view_models.ComparedRow("my eval", "–", "100 MiB", "–", "plain", None, 50.0)],
        ),
    ]


def test_an_empty_group_is_omitted_and_a_reason_is_shown():
    row = {
        "component": "x",
        "predicted_bytes": 9,
        "observed_bytes": 1,
        "residual_bytes": -8,
        "reason": "it is lazy",
    }
    [(title, [shown])] = view_models.compared_groups(
        {"components": [row], "levels": [], "phases": []}
    )
    assert (title, shown.note) == ("Components", "Likely: it is lazy.")


@pytest.mark.parametrize(
    ("residual", "tone"), [(-90, "plain"), (10, "plain"), (11, "notice"), (51, "warning")]
)
def test_only_more_memory_than_predicted_stands_out(residual, tone):
    row = {
        "component": "x",
        "predicted_bytes": 100,
        "observed_bytes": 100 + residual,
        "residual_bytes": residual,
    }
    [(_, [shown])] = view_models.compared_groups({"components": [row], "levels": [], "phases": []})
    assert shown.tone == tone


def test_the_fullest_stream_is_charted_by_default():
    streams = [a_stream(0, "a"), a_stream(1, "a", peak_bytes=9), a_stream(1, "b", limit_bytes=None)]
    assert view_models.choose_stream(streams, None, None) is streams[1]
    assert view_models.choose_stream(streams, 1, "b") is streams[2]
    assert view_models.choose_stream(streams, 0, None) is streams[0]
    assert view_models.choose_stream(streams, 7, None) is streams[1]
    assert view_models.choose_stream([], None, None) is None


def test_the_lowest_of_equal_ranks_is_charted():
    streams = [a_stream(1), a_stream(0), a_stream(2)]
    assert view_models.choose_stream(streams, None, None) is streams[1]


def test_a_running_run_shows_its_newest_forecast_and_an_oom_run_its_first_warning():
    newest = {**WARNING, "step": 99}
    assert view_models.drawn_forecast("running", newest, WARNING)["step"] == 99
    assert view_models.drawn_forecast("oom", newest, WARNING)["step"] == 90
    assert view_models.drawn_forecast("completed", newest, WARNING) is None
    assert view_models.drawn_forecast("oom", newest, None) is None


@pytest.mark.parametrize("changes", [{"level": "ok"}, {"eta_step": None}])
def test_a_forecast_without_risk_or_date_is_not_drawn(changes):
    assert view_models.drawn_forecast("running", {**WARNING, **changes}, None) is None


def test_markers_are_distinct_alerts_and_events_in_order():
    transition = {"step": 90, "from_state": "pending", "to_state": "firing"}
    worse = {"step": 95, "from_state": "firing", "to_state": "firing"}
    averted = {"step": 99, "from_state": "firing", "to_state": "averted"}
    alert = {"severity": "critical", "transitions": [transition, worse, averted]}
    events = [
        {"kind": kind, "step": step}
        for kind, step in (("oom", 100), ("oom", 100), ("phase", 3), ("my_eval", 40))
    ]
    assert [
        (marker["step"], marker["label"], marker["tone"])
        for marker in view_models.markers([alert], events)
    ] == [
        (40, "my eval", "plain"),
        (90, "warning", "critical"),
        (99, "averted", "ok"),
        (100, "out of memory", "critical"),
    ]


def test_a_chart_gets_only_the_data_of_its_stream():
    fired = {"step": 1, "from_state": "ok", "to_state": "firing"}
    alert = {"rank": 1, "device": "host", "severity": "warning", "transitions": [fired]}
    events = [{"rank": 1, "kind": "oom", "step": 5}, {"rank": 0, "kind": "snapshot", "step": 6}]
    run = {"status": "running", "alerts": [alert], "events": events}
    facts = view_models.chart_facts(run, a_stream(), [{**WARNING, "rank": 1}, WARNING], None, 7)
    assert [marker["label"] for marker in facts["markers"]] == ["snapshot"]
    assert facts["forecast"]["eta_step"] == 120.0
    assert (facts["is_running"], facts["limit_bytes"], facts["predicted_peak_bytes"]) == (
        True,
        10,
        7,
    )


def test_settings_are_flattened_and_bounded():
    config = {
        "lr": 3e-4,
        "model": {"depth": 4, "extra": {}},
        "amp": True,
        "seed": None,
        "betas": [0.9, 0.95],
        "tags": [],
        "cache_bytes": GIB,
    }
    assert view_models.pairs(config) == [
        ("lr", "0.0003"),
        ("model.depth", "4"),
        ("model.extra", "–"),
        ("amp", "yes"),
        ("seed", "–"),
        ("betas", "0.9, 0.95"),
        ("tags", "–"),
        ("cache_bytes", "1073741824 (1.00 GiB)"),
    ]
    assert (
        len(view_models.pairs({str(number): number for number in range(1000)}))
        == view_models.MAX_PAIRS
    )


def test_a_repeated_reason_is_shortened():
    def phase(name, reason):
        return {
            "phase": name,
            "predicted_bytes": GIB,
            "observed_bytes": 3 * GIB,
            "residual_bytes": 2 * GIB,
            "reason": reason,
        }

    rows = [
        phase("data", "a leak"),
        phase("forward", "a leak"),
        phase("backward", "a leak"),
        phase("optimizer", "foreach"),
    ]
    ((_, said),) = view_models.compared_groups({"components": [], "levels": [], "phases": rows})
    assert [row.note for row in said] == [
        "Likely: a leak.",
        "Likely the same.",
        "Likely the same.",
        "Likely: foreach.",
    ]


def test_components_are_stacked_if_the_agent_reads_them():
    latest = {
        "peak_allocated_bytes": 9,
        "activations_bytes": 5,
        "parameters_bytes": 4,
        "context_bytes": 3,
        "gradients_bytes": None,
    }
    assert view_models.stacked_components({"kind": "cuda", "latest": latest}) == [
        "parameters",
        "other",
        "activations",
    ]
    assert view_models.stacked_components({"kind": "host", "latest": latest}) == [
        "parameters",
        "context",
        "other",
        "activations",
    ]
    for nothing in ({"parameters_bytes": 4}, {"peak_allocated_bytes": 9}):
        assert view_models.stacked_components({"kind": "cuda", "latest": nothing}) == []


def test_an_oom_event_is_shown_without_lists_and_exact_bytes():
    data = {
        "phase": "backward",
        "asked_bytes": 2 * GIB,
        "free_bytes": None,
        "error": "x",
        "devices": {},
        "largest_tensors": [],
    }
    assert view_models.event_details({"kind": "oom", "data": data}) == [
        ("phase", "backward"),
        ("asked", "2.00 GiB"),
        ("free", "–"),
    ]


def a_change(step, to_state):
    return {"step": step, "from_state": "pending", "to_state": to_state}


def test_warnings_are_marked_as_such_and_notes_by_their_rule():
    warned = {
        "rule": "oom_forecast",
        "severity": "critical",
        "transitions": [a_change(9, "firing"), a_change(20, "averted")],
    }
    noted = {
        "rule": "prediction_mismatch",
        "severity": "note",
        "transitions": [a_change(5, "firing"), a_change(6, "averted")],
    }
    assert view_models.markers([warned, noted], []) == [
        {"step": 5, "label": "prediction mismatch", "tone": "plain"},
        {"step": 9, "label": "warning", "tone": "critical"},
        {"step": 20, "label": "averted", "tone": "ok"},
    ]


def test_a_sparkline_goes_from_edge_to_edge_and_from_nothing_to_its_peak():
    line = view_models.sparkline([None, 50, 100, None, 0])
    assert line.line == "0.0,12.5 33.3,2.0 100.0,23.0"
    assert line.area == "0,24 0.0,12.5 33.3,2.0 100.0,23.0 100,24"


@pytest.mark.parametrize("peaks", [None, [], [5], [None, 5, None]])
def test_one_value_makes_no_sparkline(peaks):
    assert view_models.sparkline(peaks) is None


@pytest.mark.parametrize(
    ("peak", "predicted", "found"),
    [
        (143, 100, ("+43 % vs predicted", "notice")),
        (88, 100, ("−12 % vs predicted", "plain")),
        (101, 100, ("as predicted", "plain")),
        (None, 100, None),
        (100, None, None),
    ],
)
def test_a_run_is_compared_with_its_prediction(peak, predicted, found):
    assert (
        view_models.residual_label({"peak_bytes": peak, "predicted_peak_bytes": predicted}) == found
    )


def test_rare_phases_are_marked():
    columns = (
        "phase_forward_peak_bytes",
        "phase_warm_up_peak_bytes",
        "phase_checkpoint_peak_bytes",
        "phase_eval_peak_bytes",
        "step_s",
    )
    assert view_models.rare_phases({"latest": dict.fromkeys(columns, 1)}) == [
        "checkpoint",
        "eval",
        "warm_up",
    ]
