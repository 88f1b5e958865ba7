"""Every rule on plain values: when it decides on a problem, and its summary."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from msgspec.structs import replace

from memagent.forecast import Forecast, Forecaster
from memagent_server.alerts.column_monitor import ColumnCheck, ColumnFinding
from memagent_server.alerts.rule_config import configure_rule
from memagent_server.alerts.rule_definition import PER_TURN, TELLS
from memagent_server.alerts.rule_input import RuleInput, ScriptAlert
from memagent_server.alerts.rules import RULES
from memagent_server.alerts.summaries import closing_summary

GIB = 2**30
WARNING = Forecast(
    step=900, level="warning", oom_probability=0.9, cause="leak", eta_step=1500.0, eta_low=1400.0, eta_high=1600.0, eta_s=600.0,
    used_bytes=28 * GIB, limit_bytes=40 * GIB, growth_bytes_per_step=2e7, growing_since_step=10,
)  # fmt: skip
GROWING = Forecast(
    step=900, level="notice", cause="leak", used_bytes=28 * GIB, limit_bytes=40 * GIB, growth_bytes_per_step=2e7, growing_since_step=10,
    grown_bytes=9 * GIB,
)  # fmt: skip
HOST = {"kind": "host", "limit_bytes": 100 * GIB, "limit_source": "cgroup"}
GPU = {"limit_bytes": 80 * GIB, "reserved_bytes": 78 * GIB}

FINDS = [
    ("oom_forecast", RuleInput(forecast=WARNING), "warning", "in about 600 steps (10 min"),
    ("oom", RuleInput(step=7, status="oom"), "critical", "ran out of memory in step 8, without a warning before"),
    ("oom", RuleInput(step=7, status=str(b"oom", "ascii")), "critical", "in step 8"),  # read from a database: another object
    ("oom", RuleInput(step=7, status="oom", was_warned=True), "critical", "ran out of memory in step 8"),
    ("lost_contact", RuleInput(step=7, status="lost_contact", error="probably killed"), "critical", "since step 7: probably killed"),
    ("host_memory", RuleInput(used_bytes=91 * GIB, **HOST), "warning", "91.00 GiB of 100 GiB (cgroup) used"),
    ("host_memory", RuleInput(used_bytes=97 * GIB, **HOST), "critical", "97.00 GiB of 100 GiB"),
    ("leak", RuleInput(forecast=GROWING), "warning", "since step 10"),
    ("high_water", RuleInput(peak_bytes=79 * GIB, **GPU), "warning", "79.00 GiB of 80.00 GiB"),
    ("fragmentation", RuleInput(inactive_split_bytes=13 * GIB, **GPU), "warning", "13.00 GiB of 78.00 GiB reserved"),
    ("prediction_mismatch", RuleInput(step=50, launch_peak_bytes=13 * GIB, predicted_peak_bytes=10 * GIB), "warning", "1.3 times the"),
    ("rank_imbalance", RuleInput(step=50, peak_by_rank={0: 10 * GIB, 1: 10 * GIB, 2: 14 * GIB}), "warning", "rank 2 peaks at 14.00 GiB"),
    ("stalled", RuleInput(step=50, silent_s=700.0, step_s=1.0), "warning", "no step for 12 min since step 50"),
    ("script", RuleInput(step=9, script_alert=ScriptAlert("Loss is NaN", level="critical", count=1200)), "critical", "reports: Loss is NaN (1,200 times)"),
    ("column", RuleInput(column=ColumnFinding(ColumnCheck("Loss", "loss", "above", 5.0, 60.0), 9, 7.25, 5.0, lasts_s=90.0)), "warning", "loss has been above 5 for 2 min: 7.25"),
    ("column", RuleInput(column=ColumnFinding(ColumnCheck("Loss", "loss", "not_finite", level="critical"), 9, float("nan"))), "critical", "loss is nan"),
    ("column", RuleInput(column=ColumnFinding(ColumnCheck("Loss", "loss", "spike", 10.0), 9, 57.0, 2.0, 123.4)), "warning", "loss jumped to 57, 123 deviations above its median of 2"),
    ("column", RuleInput(column=ColumnFinding(ColumnCheck("Val", "val", "no_new_low", 0.0, 60.0), 9, 1.0, 0.5, reference_step=1200, lasts_s=7200.0)), "warning", "val has had no new low for 2 h: the last is 0.5 at step 1,200"),
    ("column", RuleInput(column=ColumnFinding(ColumnCheck("Mem", "allocated_bytes", "above", 2.0**30), 9, 2.0**31, 2.0**30)), "warning", "allocated_bytes has been above 1.00 GiB: 2.00 GiB"),
    ("first_step", RuleInput(step=1, launch_peak_bytes=30 * GIB, predicted_peak_bytes=28 * GIB, limit_bytes=80 * GIB), "warning", "first step: 30.00 GiB of 80.00 GiB used, predicted 28.00 GiB"),
    ("finished", RuleInput(step=1200, run_s=7200.0, launch_peak_bytes=30 * GIB, limit_bytes=80 * GIB), "warning", "completed after 1,200 steps in 2 h: peak 30.00 GiB of 80.00 GiB"),
]  # fmt: skip
FINDS_NOTHING = [
    ("first_step", RuleInput(step=0, status="running")),
    ("finished", RuleInput(step=0, status="running")),
    ("oom_forecast", RuleInput(forecast=replace(GROWING, level="ok"))),
    ("oom", RuleInput(status="failed")),
    ("lost_contact", RuleInput(status="oom")),
    ("host_memory", RuleInput(used_bytes=89 * GIB, **HOST)),
    ("host_memory", RuleInput(kind="cuda", used_bytes=99 * GIB, limit_bytes=100 * GIB)),
    (
        "host_memory",
        RuleInput(used_bytes=99 * GIB, forecast=WARNING, **HOST),
    ),  # oom_forecast has notified already
    ("leak", RuleInput(forecast=WARNING)),
    ("leak", RuleInput(forecast=Forecast(step=900, used_bytes=28 * GIB, limit_bytes=40 * GIB))),
    ("high_water", RuleInput(peak_bytes=77 * GIB, **GPU)),
    ("high_water", RuleInput(peak_bytes=79 * GIB, kind="host", limit_bytes=80 * GIB)),
    ("fragmentation", RuleInput(inactive_split_bytes=11 * GIB, **GPU)),
    (
        "prediction_mismatch",
        RuleInput(step=50, launch_peak_bytes=11 * GIB, predicted_peak_bytes=10 * GIB),
    ),
    (
        "prediction_mismatch",
        RuleInput(step=2, launch_peak_bytes=20 * GIB, predicted_peak_bytes=10 * GIB),
    ),
    (
        "prediction_mismatch",
        RuleInput(step=50, launch_peak_bytes=300 * 2**20, predicted_peak_bytes=100 * 2**20),
    ),
    ("rank_imbalance", RuleInput(step=50, peak_by_rank={0: 10 * GIB, 1: 11 * GIB})),
    ("rank_imbalance", RuleInput(step=50, peak_by_rank={0: 10 * GIB})),
    ("stalled", RuleInput(silent_s=700.0, step_s=60.0)),  # a step takes a minute
    ("stalled", RuleInput(silent_s=100.0, step_s=1.0)),
    ("script", RuleInput(step=9)),
    ("column", RuleInput(step=9)),
]


def decide(name, facts, *, is_open=False):
    rule = RULES[name]
    return rule.decide(facts, configure_rule(rule).thresholds, is_open)


@pytest.mark.parametrize(("name", "facts", "level", "words"), FINDS)
def test_it_finds(name, facts, level, words):
    finding = decide(name, facts)
    assert finding.level == level
    assert words in RULES[name].summarize(finding.data)


def test_a_notice_is_calm_unless_the_project_wants_it():
    rule = RULES["oom_forecast"]
    finding = decide("oom_forecast", RuleInput(forecast=replace(WARNING, level="notice")))
    assert rule.summarize(finding.data).startswith("may run out of memory in about 600 steps")
    severities = [
        configure_rule(rule, tells=tells).severity(finding.level) for tells in rule.tells_options
    ]
    assert severities == ["warning", None, None, None]


@pytest.mark.parametrize(("name", "facts"), FINDS_NOTHING)
def test_it_finds_nothing(name, facts):
    assert decide(name, facts).level == "ok"


@pytest.mark.parametrize("name", RULES)
def test_it_finds_nothing_without_data(name):
    assert decide(name, RuleInput()).level == "ok"


@pytest.mark.parametrize("name", RULES)
def test_it_is_in_both_lists_and_in_the_docs(name):
    assert {name} <= {rule for rule, *_ in FINDS} and {name} <= {rule for rule, *_ in FINDS_NOTHING}
    page = (Path(__file__).parents[3] / "docs" / "alerts.md").read_text()
    section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert section and all(f"`{threshold.name}`" in section for threshold in RULES[name].thresholds)


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.reading])
def test_the_reading_of_an_open_alert_is_in_its_data_and_its_summary(name):
    facts = next(facts for rule, facts, *_ in FINDS if rule == name)
    data, key = decide(name, facts).data, RULES[name].reading
    doubled = RULES[name].summarize(data | {key: 2 * data[key]})
    assert RULES[name].summarize(data) != doubled


def test_an_open_alert_is_released_below_its_threshold():
    facts = RuleInput(peak_bytes=77 * GIB, **GPU)
    assert (
        decide("high_water", facts).level == "ok"
        and decide("high_water", facts, is_open=True).level == "warning"
    )


@pytest.mark.parametrize(("left_s", "level"), [(119.0, "critical"), (121.0, "warning")])
def test_a_forecast_is_critical_by_the_time_left(left_s, level):
    forecast = Forecast(step=900, level="warning", eta_step=1500.0, eta_s=left_s)
    assert decide("oom_forecast", RuleInput(forecast=forecast)).level == level


def test_a_limit_that_does_not_kill_is_never_critical():
    facts = RuleInput(kind="host", used_bytes=99, limit_bytes=100, limit_source="RLIMIT_DATA")
    assert decide("host_memory", facts).level == "warning"


def test_only_urgent_rules_notify_by_default():
    defaults = {name: rule.tells for name, rule in RULES.items() if rule.tells != "never"}
    assert defaults == {
        "oom_forecast": "warning",
        "oom": "warning",
        "lost_contact": "warning",
        "host_memory": "critical",
        "script": "warning",
        "column": "warning",
        "first_step": "warning",
        "finished": "warning",
    }
    assert {name for name, rule in RULES.items() if not rule.is_on} == {"first_step", "finished"}


@pytest.mark.parametrize(
    ("tells", "severities"),
    [
        ("warning", ["warning", "critical"]),
        ("critical", ["note", "critical"]),
        ("never", ["note", "note"]),
    ],
)
def test_a_result_below_the_configured_severity_is_a_note(tells, severities):
    how = configure_rule(RULES["host_memory"], tells=tells)
    assert [how.severity(level) for level in ("warning", "critical")] == severities
    assert how.severity("ok") is None and tells in TELLS


@pytest.mark.parametrize("state", ["oom", "lost_contact", "finished", "averted", "ok"])
@pytest.mark.parametrize("rule", ["oom_forecast", "high_water"])
def test_a_closed_alert_says_how_it_ended(rule, state):
    summary = closing_summary(rule, "will run out of memory in about 5 steps", state, 100, 130)
    assert not summary.startswith("will") and (
        " step 1" in summary or summary.startswith("was not confirmed")
    )


# At the thresholds: the largest value that is calm, and the smallest that isn't

GROWTH = replace(GROWING, step=110, limit_bytes=1000)
EDGES = [
    ("leak", "forecast", replace(GROWTH, grown_bytes=99), replace(GROWTH, grown_bytes=100), {}),
    ("high_water", "peak_bytes", 969, 970, {"limit_bytes": 1000}),
    ("fragmentation", "inactive_split_bytes", 149, 150, {"limit_bytes": 1000}),
    ("prediction_mismatch", "launch_peak_bytes", 12 * GIB - 1, 12 * GIB, {"step": 10, "predicted_peak_bytes": 10 * GIB}),
    ("prediction_mismatch", "launch_peak_bytes", 2**29, 2**29 + 1, {"step": 10, "predicted_peak_bytes": 1}),
    ("prediction_mismatch", "step", 9, 10, {"launch_peak_bytes": 2**30, "predicted_peak_bytes": 1}),
    ("rank_imbalance", "peak_by_rank", {0: 124, 1: 100}, {0: 125, 1: 100}, {"step": 10}),
    ("rank_imbalance", "step", 9, 10, {"peak_by_rank": {0: 125, 1: 100}}),
    ("host_memory", "used_bytes", 89, 90, {"kind": "host", "limit_bytes": 100, "limit_source": "cgroup"}),
    ("stalled", "silent_s", 599.0, 600.0, {"step_s": 30.0}),
    ("stalled", "silent_s", 619.0, 620.0, {"step_s": 31.0}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "field", "calm", "problem", "facts"), EDGES)
def test_it_finds_a_problem_from_its_threshold_on(name, field, calm, problem, facts):
    assert decide(name, RuleInput(**facts, **{field: calm})).level == "ok"
    assert decide(name, RuleInput(**facts, **{field: problem})).level == "warning"


@pytest.mark.parametrize(
    ("name", "field", "released", "held", "facts"),
    [
        ("high_water", "peak_bytes", 9408, 9409, {"limit_bytes": 10_000}),
        ("fragmentation", "inactive_split_bytes", 1454, 1455, {"limit_bytes": 10_000}),
        ("rank_imbalance", "peak_by_rank", {0: 12_124, 1: 10_000}, {0: 12_125, 1: 10_000}, {"step": 10}),
        ("host_memory", "used_bytes", 8729, 8731, {"kind": "host", "limit_bytes": 10_000}),
        ("leak", "forecast", replace(GROWTH, grown_bytes=96), replace(GROWTH, grown_bytes=98), {}),
        ("stalled", "silent_s", 599.0, 600.0, {"step_s": 1.0}),
    ],
)  # fmt: skip
def test_an_open_alert_is_released_at_97_percent_of_its_threshold(
    name, field, released, held, facts
):
    # except stalled, which the next step ends
    assert decide(name, RuleInput(**facts, **{field: released}), is_open=True).level == "ok"
    assert decide(name, RuleInput(**facts, **{field: held}), is_open=True).level == "warning"


def test_host_memory_is_critical_from_96_percent_of_a_limit_that_kills():
    def level(used: int, source: str) -> str:
        facts = RuleInput(kind="host", used_bytes=used, limit_bytes=100, limit_source=source)
        return decide("host_memory", facts).level

    assert [level(used, "cgroup") for used in (95, 96)] == ["warning", "critical"]
    assert [level(used, "physical memory") for used in (95, 96)] == ["warning", "critical"]
    assert [level(used, "RLIMIT_AS") for used in (89, 90, 100)] == ["ok", "warning", "warning"]


def test_an_open_host_memory_alert_stays_beside_a_forecast():
    facts = RuleInput(used_bytes=91 * GIB, forecast=WARNING, **HOST)
    assert decide("host_memory", facts).level == "ok"
    assert decide("host_memory", facts, is_open=True).level == "warning"


@pytest.mark.parametrize(
    ("eta_step", "eta_s", "level"),
    [
        (1500.0, None, "warning"),  # without times, the forecaster's own level
        (1500.0, 120.0, "critical"),
        (1500.0, 120.5, "warning"),
        (901.0, 400.0, "warning"),  # the next step: also the forecaster's own level
        (901.0, 100.0, "warning"),
        (901.5, 100.0, "critical"),
        (None, 100.0, "critical"),
    ],
)
def test_the_seconds_left_decide_unless_the_next_step_may_be_the_last(eta_step, eta_s, level):
    forecast = Forecast(step=900, level="warning", eta_step=eta_step, eta_s=eta_s)
    result = decide("oom_forecast", RuleInput(forecast=forecast))
    assert (result.level, result.data["level"], result.data["step"]) == (level, level, 900)


def test_a_forecast_without_seconds_keeps_its_own_level():
    forecast = Forecast(step=900, level="critical", eta_step=905.0, cause="input")
    result = decide("oom_forecast", RuleInput(forecast=forecast))
    assert (result.level, result.cause) == ("critical", "input")


# The facts that are stored


def test_a_result_holds_the_facts_of_its_decision():
    results = {name: decide(name, facts) for name, facts, *_ in FINDS}
    assert results["leak"].cause == "leak"
    assert results["leak"].data["grown_bytes"] == 9 * GIB
    assert results["leak"].data["limit_bytes"] == 40 * GIB
    assert results["high_water"].data == {"used_bytes": 79 * GIB, "limit_bytes": 80 * GIB}
    assert results["fragmentation"].cause == "fragmentation"
    assert results["fragmentation"].data == {
        "split_bytes": 13 * GIB, "reserved_bytes": 78 * GIB, "used_bytes": None, "limit_bytes": 80 * GIB,
    }  # fmt: skip
    assert results["prediction_mismatch"].data == {
        "used_bytes": 13 * GIB, "predicted_bytes": 10 * GIB, "limit_bytes": None,
    }  # fmt: skip
    assert results["rank_imbalance"].data == {
        "rank": 2, "used_bytes": 14 * GIB, "others_bytes": 10 * GIB, "limit_bytes": None,
    }  # fmt: skip
    assert results["host_memory"].data == {
        "used_bytes": 97 * GIB, "limit_bytes": 100 * GIB, "limit_source": "cgroup",
    }  # fmt: skip
    assert results["host_memory"].cause == "host_memory"
    assert results["stalled"].data == {"silent_s": 700.0, "step_s": 1.0, "step": 50}
    assert results["lost_contact"].data == {
        "step": 7, "level": "critical", "was_warned": False, "error": "probably killed",
        "used_bytes": None, "limit_bytes": None,
    }  # fmt: skip


def test_the_others_of_an_imbalance_are_their_median():
    peaks = {0: 100, 1: 10, 2: 20, 3: 60, 4: 30}
    result = decide("rank_imbalance", RuleInput(step=50, peak_by_rank=peaks))
    assert (result.data["rank"], result.data["others_bytes"]) == (0, 25)


@pytest.mark.parametrize(
    "forecast",
    [
        replace(GROWING, cause="input"),
        replace(GROWING, grown_bytes=None),
        replace(GROWING, growth_bytes_per_step=None),
        replace(GROWING, limit_bytes=None),
        replace(GROWING, level="critical"),
    ],
)
def test_growth_that_is_no_leak_is_none_of_its_business(forecast):
    assert decide("leak", RuleInput(forecast=forecast)).level == "ok"
    assert decide("leak", RuleInput(forecast=replace(GROWING, cause=None))).cause == "leak"


def test_a_leak_is_noted_by_what_has_grown_and_not_by_its_newest_pace():
    forecaster = Forecaster(40 * GIB)
    for step in range(601):
        held = (step + max(0, step - 300)) * 2**22
        forecast = forecaster.update(step, allocated_bytes=held, optimizer_steps=1)
    result = decide("leak", RuleInput(forecast=replace(forecast, limit_bytes=held * 9)))
    assert result.level == "warning" and held * 0.98 < result.data["grown_bytes"] <= held
    assert (
        decide("leak", RuleInput(forecast=replace(forecast, limit_bytes=held * 11))).level == "ok"
    )


def test_a_leak_stays_open_when_it_threatens_the_run():
    paging = RuleInput(forecast=replace(GROWING, level="critical"))
    assert decide("leak", paging, is_open=True).level == "warning"
    other = RuleInput(forecast=replace(GROWING, level="critical", cause="input"))
    assert decide("leak", other, is_open=True).level == "ok"


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("high_water", {"peak_bytes": 0, "limit_bytes": 10}),
        ("high_water", {"peak_bytes": 10, "limit_bytes": 0}),
        ("fragmentation", {"inactive_split_bytes": 10, "limit_bytes": 0}),
        (
            "prediction_mismatch",
            {"step": 50, "launch_peak_bytes": 2**40, "predicted_peak_bytes": 0},
        ),
        ("rank_imbalance", {"step": 50, "peak_by_rank": {0: 10, 1: 0}}),
        ("host_memory", {"kind": "host", "used_bytes": 10, "limit_bytes": 0}),
        ("stalled", {"silent_s": 1e6, "step_s": None}),
        ("stalled", {"silent_s": None, "step_s": 1.0}),
    ],
)
def test_zero_and_unknown_are_calm(name, facts):
    assert decide(name, RuleInput(**facts)).level == "ok"


# The contract of the settings


def test_thresholds_have_the_documented_defaults_and_these_limits():
    page = (Path(__file__).parents[3] / "docs" / "alerts.md").read_text()
    limits = {}
    units = {"": 1, "s": 1, "MiB": 2**20}
    for rule in RULES.values():
        for threshold in rule.thresholds:
            number, unit = re.search(rf"`{threshold.name}`\s+\(([\d.]+) ?(\w*)\)",
                                     page.partition(f"\n## {rule.name}\n")[2]).groups()  # fmt: skip
            assert threshold.default == float(number) * units[unit], threshold
            limits[rule.name, threshold.name] = (threshold.least, threshold.most, threshold.unit)
    assert limits == {
        ("oom_forecast", "critical_s"): (1, 24 * 3600, "s"),
        ("oom_forecast", "page_cost"): (0, 1, "ratio"),
        ("leak", "grown_ratio"): (0.01, 1, "ratio"),
        ("high_water", "used_ratio"): (0.1, 1, "ratio"),
        ("fragmentation", "split_ratio"): (0.01, 1, "ratio"),
        ("prediction_mismatch", "over_ratio"): (1, 10, "ratio"),
        ("prediction_mismatch", "over_bytes"): (0, 1024**4, "bytes"),
        ("rank_imbalance", "peak_ratio"): (1.01, 10, "ratio"),
        ("host_memory", "used_ratio"): (0.1, 1, "ratio"),
        ("host_memory", "critical_ratio"): (0.1, 1, "ratio"),
        ("stalled", "silent_s"): (30, 7 * 24 * 3600, "s"),
        ("stalled", "silent_steps"): (1, 100_000, "ratio"),
        ("script", "quiet_s"): (60, 7 * 24 * 3600, "s"),
    }


def test_rules_of_a_turn_fire_after_three_and_clear_after_three_and_a_minute():
    assert (PER_TURN.confirm, PER_TURN.calm, PER_TURN.hold_s) == (3, 3, 60.0)
    per_turn = {name for name, rule in RULES.items() if rule.hysteresis is PER_TURN}
    assert per_turn == set(RULES) - {"oom_forecast", "column"}
    assert {name: rule.schedule for name, rule in RULES.items() if rule.schedule != "turn"} == {
        "oom_forecast": "sample", "oom": "end", "lost_contact": "end",
        "rank_imbalance": "run", "stalled": "run", "script": "event",
        "column": "run", "first_step": "milestone", "finished": "milestone",
    }  # fmt: skip


def test_rules_are_immutable():
    rule = RULES["leak"]
    for part, name in ((rule, "tells"), (rule.thresholds[0], "default")):
        with pytest.raises(FrozenInstanceError):
            setattr(part, name, 1)
