"""Alert rules on what happens to a run: silence, death, reports of its script, milestones."""

from __future__ import annotations

from memagent_server.alerts import summaries
from memagent_server.alerts.rule_definition import Rule, Threshold, Thresholds
from memagent_server.alerts.rule_input import CALM, RuleInput, RuleResult
from memagent_server.alerts.state import Hysteresis

MAX_CAUSE_LENGTH = 40
"""Characters of an incident's cause: alerts whose titles begin with the same ones share it."""


# -- stalled: alive, but no step -------------------------------------------------------------------


def _decide_stalled(rule_input: RuleInput, thresholds: Thresholds, _is_open: bool) -> RuleResult:
    silent_s, step_s = rule_input.silent_s, rule_input.step_s
    if silent_s is None or step_s is None:
        return CALM
    if silent_s < max(thresholds["silent_s"], thresholds["silent_steps"] * step_s):
        return CALM
    data = {"silent_s": silent_s, "step_s": step_s, "step": rule_input.step}
    return RuleResult("warning", None, data)


STALLED = Rule(
    "stalled",
    "The process is alive but takes no step: a hang, a deadlock, a very long evaluation.",
    _decide_stalled,
    summaries.stalled,
    schedule="run",
    thresholds=(
        Threshold("silent_s", 600, 30, 604_800, "s", "no step for at least this long"),
        Threshold(
            "silent_steps", 20, 1, 100_000, "ratio", "and for this many times the usual step time"
        ),
    ),
)


# -- oom and lost_contact: the run has died --------------------------------------------------------


def _decide_oom(rule_input: RuleInput, _thresholds: Thresholds, _is_open: bool) -> RuleResult:
    return _decide_death(rule_input, "oom")


def _decide_lost_contact(
    rule_input: RuleInput, _thresholds: Thresholds, _is_open: bool
) -> RuleResult:
    return _decide_death(rule_input, "lost_contact")


def _decide_death(rule_input: RuleInput, status: str) -> RuleResult:
    if rule_input.status != status:
        return CALM
    data = {
        "step": rule_input.step,
        "level": "critical",
        "was_warned": rule_input.was_warned,
        "error": rule_input.error,
        "used_bytes": rule_input.launch_peak_bytes,
        "limit_bytes": rule_input.limit_bytes,
    }
    return RuleResult("critical", None, data)


OOM = Rule(
    "oom",
    "A run ran out of memory, and no warning was open.",
    _decide_oom,
    summaries.oom,
    schedule="end",
    tells="warning",
)
LOST_CONTACT = Rule(
    "lost_contact",
    "A running run fell silent: killed, or its machine or network is down.",
    _decide_lost_contact,
    summaries.lost_contact,
    schedule="end",
    tells="warning",
)


# -- script: the script itself reports a problem ---------------------------------------------------


def _decide_script(rule_input: RuleInput, _thresholds: Thresholds, _is_open: bool) -> RuleResult:
    alert = rule_input.script_alert
    if alert is None:
        return CALM
    data = {
        "title": alert.title,
        "text": alert.text,
        "level": alert.level,
        "count": alert.count,
        "step": rule_input.step,
    }
    return RuleResult(alert.level, alert.title[:MAX_CAUSE_LENGTH], data)


SCRIPT = Rule(
    "script",
    "The script has reported a problem by run.alert.",
    _decide_script,
    summaries.script,
    schedule="event",
    tells="warning",
    tells_end=False,
    thresholds=(
        Threshold("quiet_s", 3_600, 60, 604_800, "s", "closes if not repeated for this long"),
    ),
)


# -- column: a column or scalar fails a test of the project ----------------------------------------


def _decide_column(rule_input: RuleInput, _thresholds: Thresholds, _is_open: bool) -> RuleResult:
    finding = rule_input.column
    if finding is None:
        return CALM
    return RuleResult(finding.rule.level, finding.rule.name, finding.to_data())


COLUMN = Rule(
    "column",
    "A column or scalar fails a test that the project has set.",
    _decide_column,
    summaries.column,
    schedule="run",
    tells="warning",
    hysteresis=Hysteresis(confirm=1, calm=3, hold_s=60.0),
    tells_end=False,
)

# -- first_step and finished: good news -----------------------------------------------------------


def _decide_milestone(rule_input: RuleInput, _thresholds: Thresholds, _is_open: bool) -> RuleResult:
    # a run may complete without a step
    if rule_input.step == 0 and rule_input.run_s is None:
        return CALM
    data = {
        "step": rule_input.step,
        "used_bytes": rule_input.launch_peak_bytes,
        "limit_bytes": rule_input.limit_bytes,
        "predicted_bytes": rule_input.predicted_peak_bytes,
        "run_s": rule_input.run_s,
    }
    return RuleResult("warning", None, data)


FIRST_STEP = Rule(
    "first_step",
    "A run has taken its first step: its peak and the predicted one.",
    _decide_milestone,
    summaries.first_step,
    schedule="milestone",
    tells="warning",
    is_on=False,
)
FINISHED = Rule(
    "finished",
    "A run has completed.",
    _decide_milestone,
    summaries.finished,
    schedule="milestone",
    tells="warning",
    is_on=False,
)
MILESTONES = (FIRST_STEP.name, FINISHED.name)
