"""View models: widths, rows and markers from plain values."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from memagent.units import GIB, MIB
from memagent_server.schemas.predictions import ComponentResidual, LevelResidual, PhaseResidual
from memagent_server.schemas.runs import RunEvent
from memagent_server.web import view_models
from tests.server.web.schema_examples import ALERT, COMPONENTS, FIRED, LEAK, RUN, STREAM

WARNING = replace(LEAK, step=90, eta_step=120.0)


def a_run(**changes):
    sizes = {"peak_bytes": 6 * GIB, "limit_bytes": 8 * GIB, "predicted_peak_bytes": 2 * GIB}
    return replace(RUN, **{**sizes, **changes})


def a_stream(rank=0, device="host", **changes):
    return replace(STREAM, rank=rank, device=device, **changes)


def an_event(kind, step=5, *, rank=0, data=None):
    return RunEvent(kind=kind, rank=rank, step=step, at=FIRED.at, data=data or {})


def groups(**changes):
    return view_models.compared_groups(replace(COMPONENTS, **changes))


def test_components_are_listed_with_their_prediction():
    row = ComponentResidual(50 * MIB, 100 * MIB, 50 * MIB, "optimizer_state", None)
    level = LevelResidual(200 * MIB, None, None, "device", 190 * MIB, 210 * MIB, None)
    phase = PhaseResidual(None, 100 * MIB, None, "my_eval", None)
    assert groups(components=[row], levels=[level], phases=[phase]) == [
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
                    "90 % interval: 190 MiB to 210 MiB",
                )
            ],
        ),
        (
            "Peak by phase",
            [view_models.ComparedRow("my eval", "–", "100 MiB", "–", "plain", None, 50.0)],
        ),
    ]


@pytest.mark.parametrize(
    ("observed", "ending"),
    [(180, "; this run is below"), (200, "210 MiB"), (220, "; this run is above")],
)
def test_a_level_outside_of_its_interval_is_marked(observed, ending):
    low, high = 190 * MIB, 210 * MIB
    is_within = low <= observed * MIB <= high
    row = LevelResidual(200 * MIB, observed * MIB, None, "device", low, high, is_within)
    [(_, [text])] = groups(levels=[row])
    assert text.note.startswith("90 % interval: 190 MiB to 210 MiB")
    assert text.note.endswith(ending)


def test_an_empty_group_is_omitted_and_a_reason_is_shown():
    [(title, [text])] = groups(components=[ComponentResidual(9, 1, -8, "x", "it is lazy")])
    assert (title, text.note) == ("Components", "Likely: it is lazy.")


@pytest.mark.parametrize(
    ("residual", "tone"), [(-90, "plain"), (10, "plain"), (11, "notice"), (51, "warning")]
)
def test_only_more_memory_than_predicted_stands_out(residual, tone):
    row = ComponentResidual(100, 100 + residual, residual, "x", None)
    [(_, [text])] = groups(components=[row])
    assert text.tone == tone


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


def an_incident(step, state, **changes):
    alert = replace(ALERT, first_step=step)
    facts = {"rule": "oom_forecast", "state": state, "severity": "warning", "alerts": [alert]}
    return SimpleNamespace(**{**facts, **changes})


@pytest.mark.parametrize(
    ("incidents", "steps"),
    [
        ([], [90]),
        ([an_incident(63, "oom")], [63]),
        ([an_incident(157, "oom"), an_incident(63, "averted")], [63, 157]),
        ([an_incident(157, "oom"), an_incident(63, "oom")], [157]),
        ([an_incident(157, "pending"), an_incident(63, "averted")], [63]),
        ([an_incident(157, "firing", severity="note"), an_incident(9, "oom", rule="leak")], [90]),
    ],
)
def test_the_steps_of_warnings_are_those_of_one_launch(incidents, steps):
    assert view_models.warning_steps(incidents, WARNING) == steps
    assert view_models.warning_steps(incidents, None) == []


def test_a_running_run_shows_its_newest_forecast_and_an_oom_run_its_first_warning():
    newest = replace(WARNING, step=99)
    assert view_models.drawn_forecast("running", newest, WARNING)["step"] == 99
    assert view_models.drawn_forecast("oom", newest, WARNING)["step"] == 90
    assert view_models.drawn_forecast("completed", newest, WARNING) is None
    assert view_models.drawn_forecast("oom", newest, None) is None


@pytest.mark.parametrize("changes", [{"level": "ok"}, {"eta_step": None}])
def test_a_forecast_without_risk_or_date_is_not_drawn(changes):
    assert view_models.drawn_forecast("running", replace(WARNING, **changes), None) is None


def test_markers_are_distinct_alerts_and_events_in_order():
    first = replace(FIRED, step=90, severity="warning")
    worse = replace(FIRED, step=95, from_state="firing", severity="critical")
    better, again = replace(first, step=96, from_state="firing"), replace(worse, step=97)
    averted = replace(FIRED, step=99, from_state="firing", to_state="averted")
    alert = replace(ALERT, transitions=[first, worse, better, again, averted])
    events = [
        an_event(kind, step)
        for kind, step in (("oom", 100), ("oom", 100), ("phase", 3), ("my_eval", 40))
    ]
    assert [
        (marker["step"], marker["label"], marker["tone"])
        for marker in view_models.markers([alert], events)
    ] == [
        (40, "my eval", "plain"),
        (90, "warning", "warning"),
        (95, "critical", "critical"),
        (99, "averted", "ok"),
        (101, "out of memory", "critical"),
    ]


def test_a_chart_gets_only_the_data_of_its_stream():
    alert = replace(ALERT, rank=1, transitions=[FIRED])
    run = a_run(alerts=[alert], events=[an_event("oom", rank=1), an_event("snapshot")])
    newest = [replace(WARNING, rank=1, eta_step=7.0), WARNING]
    facts = view_models.chart_facts(run, a_stream(), newest, None, 7)
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
    phases = [
        PhaseResidual(GIB, 3 * GIB, 2 * GIB, name, reason)
        for name, reason in (
            ("data", "a leak"),
            ("forward", "a leak"),
            ("backward", "a leak"),
            ("optimizer", "foreach"),
        )
    ]
    [(_, rows)] = groups(phases=phases)
    assert [row.note for row in rows] == [
        "Likely: a leak.",
        "Same likely cause.",
        "Same likely cause.",
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
    assert view_models.stacked_components(a_stream(kind="cuda", latest=latest)) == [
        "parameters",
        "other",
        "activations",
    ]
    assert view_models.stacked_components(a_stream(kind="host", latest=latest)) == [
        "parameters",
        "context",
        "other",
        "activations",
    ]
    for nothing in ({"parameters_bytes": 4}, {"peak_allocated_bytes": 9}):
        assert view_models.stacked_components(a_stream(kind="cuda", latest=nothing)) == []


def test_an_oom_event_is_shown_without_lists_and_exact_bytes():
    data = {
        "phase": "backward",
        "asked_bytes": 2 * GIB,
        "free_bytes": None,
        "error": "x",
        "devices": {},
        "largest_tensors": [],
    }
    assert view_models.event_details(an_event("oom", data=data)) == [
        ("phase", "backward"),
        ("asked", "2.00 GiB"),
        ("free", "–"),
    ]


def test_the_newest_diagnosis_is_listed_and_no_event_of_another_place():
    kinds = ("diagnosis", "oom", "hints", "diagnosis", "command_reply", "snapshot")
    events = [an_event(kind, step=step) for step, kind in enumerate(kinds)]
    listed = view_models.listed_events(events)
    assert [(event.kind, event.step) for event in listed] == [
        ("diagnosis", 0),
        ("oom", 1),
        ("snapshot", 5),
    ]


def test_warnings_are_marked_by_severity_and_notes_by_their_rule():
    def fired_and_averted(first, last):
        return [replace(FIRED, step=first), replace(FIRED, step=last, to_state="averted")]

    warned = replace(ALERT, transitions=fired_and_averted(9, 20))
    noted = replace(
        ALERT, rule="prediction_mismatch", severity="note", transitions=fired_and_averted(5, 6)
    )
    assert view_models.markers([warned, noted], []) == [
        {"step": 5, "label": "prediction mismatch", "tone": "plain"},
        {"step": 9, "label": "critical", "tone": "critical"},
        {"step": 20, "label": "averted", "tone": "ok"},
    ]


def test_rare_phases_are_marked():
    columns = (
        "phase_forward_peak_bytes",
        "phase_warm_up_peak_bytes",
        "phase_checkpoint_peak_bytes",
        "phase_eval_peak_bytes",
        "step_s",
    )
    assert view_models.rare_phases(a_stream(latest=dict.fromkeys(columns, 1))) == [
        "checkpoint",
        "eval",
        "warm_up",
    ]
