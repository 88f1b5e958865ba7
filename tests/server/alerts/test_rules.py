"""Every rule on plain values: when it decides on a problem, and its summary."""

from __future__ import annotations

from pathlib import Path

import pytest

from memagent.forecast import Forecast
from memagent_server.alerts.rule_config import configure_rule
from memagent_server.alerts.rule_input import RuleInput
from memagent_server.alerts.rules import RULES, TELLS
from memagent_server.alerts.summaries import closing_summary

GIB = 2**30
WARNING = Forecast(
    step=900, level="warning", oom_probability=0.9, cause="leak", eta_step=1500.0, eta_low=1400.0, eta_high=1600.0, eta_s=600.0,
    used_bytes=28 * GIB, limit_bytes=40 * GIB, growth_bytes_per_step=2e7, growing_since_step=10,
)  # fmt: skip
GROWING = Forecast(
    step=900, level="notice", cause="leak", used_bytes=28 * GIB, limit_bytes=40 * GIB, growth_bytes_per_step=2e7, growing_since_step=10,
)  # fmt: skip
HOST = {"kind": "host", "limit_bytes": 100 * GIB, "limit_source": "cgroup"}
GPU = {"limit_bytes": 80 * GIB, "reserved_bytes": 78 * GIB}

FINDS = [
    ("oom_forecast", RuleInput(forecast=WARNING), "warning", "in about 600 steps (10 min"),
    ("oom", RuleInput(step=7, status="oom"), "critical", "ran out of memory at step 7, without a warning before"),
    ("oom", RuleInput(step=7, status="oom", was_warned=True), "critical", "ran out of memory at step 7"),
    ("lost_contact", RuleInput(step=7, status="lost_contact", error="probably killed"), "critical", "since step 7: probably killed"),
    ("host_memory", RuleInput(used_bytes=91 * GIB, **HOST), "warning", "91.00 GiB of 100 GiB (cgroup) used"),
    ("host_memory", RuleInput(used_bytes=97 * GIB, **HOST), "critical", "97.00 GiB of 100 GiB"),
    ("leak", RuleInput(forecast=GROWING), "warning", "since step 10"),
    ("high_water", RuleInput(peak_bytes=79 * GIB, **GPU), "warning", "79.00 GiB of 80.00 GiB"),
    ("fragmentation", RuleInput(inactive_split_bytes=13 * GIB, **GPU), "warning", "13.00 GiB of 78.00 GiB reserved"),
    ("prediction_mismatch", RuleInput(step=50, launch_peak_bytes=13 * GIB, predicted_peak_bytes=10 * GIB), "warning", "1.3 times the"),
    ("rank_imbalance", RuleInput(step=50, peak_by_rank={0: 10 * GIB, 1: 10 * GIB, 2: 14 * GIB}), "warning", "rank 2 peaks at 14.00 GiB"),
    ("stalled", RuleInput(step=50, silent_s=700.0, step_s=1.0), "warning", "no step for 12 min since step 50"),
]  # fmt: skip
FINDS_NOTHING = [
    ("oom_forecast", RuleInput(forecast=GROWING)),
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
]


def decide(name, facts, *, is_open=False):
    rule = RULES[name]
    return rule.decide(facts, configure_rule(rule).thresholds, is_open)


@pytest.mark.parametrize(("name", "facts", "level", "words"), FINDS)
def test_it_finds(name, facts, level, words):
    finding = decide(name, facts)
    assert finding.level == level
    assert words in RULES[name].summarize(finding.data)


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
    }


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
