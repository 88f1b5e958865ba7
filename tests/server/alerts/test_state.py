"""The state machine, rule by rule as its docstring numbers them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_server.alerts.state import (
    FINAL,
    PER_SAMPLE,
    Hysteresis,
    RuleState,
    next_state,
    state_after_run,
    worst_severity,
    worst_state,
)

CALM, CONFIRM, HOLD_S = PER_SAMPLE.calm, PER_SAMPLE.confirm, PER_SAMPLE.hold_s
FIRING = RuleState("firing", "warning", 0, 0.0)


def after(
    state: RuleState, levels: list[str], *, now: float = 0.0, step_s: float = 1.0
) -> RuleState:
    for number, level in enumerate(levels):
        state = next_state(state, level, now + number * step_s)
    return state


def test_1_the_first_forecast_that_pages_makes_it_pending():
    assert next_state(RuleState(), "warning", 5.0).state == "pending"
    assert next_state(RuleState(), "notice", 5.0).state == "ok"


def test_2_it_fires_after_several_pages_in_a_row_or_at_once_when_critical():
    assert after(RuleState(), ["warning"] * (CONFIRM - 1)).state == "pending"
    assert after(RuleState(), ["warning"] * CONFIRM).state == "firing"
    assert next_state(RuleState(), "critical", 0.0) == RuleState("firing", "critical", 0, 0.0)


def test_3_pending_returns_to_ok_without_a_notification():
    assert after(RuleState(), ["warning", "ok", "warning", "notice"]) == RuleState()


def test_4_it_escalates_and_never_deescalates():
    state = after(FIRING, ["critical", "warning", "warning"])
    assert (state.state, state.severity) == ("firing", "critical")


def test_5_it_is_averted_only_after_long_calm_and_a_minimum_hold():
    assert after(FIRING, ["ok"] * (CALM - 1), step_s=10).state == "firing"
    assert after(FIRING, ["ok"] * CALM, step_s=10).state == "averted"
    assert after(FIRING, ["ok"] * CALM, step_s=HOLD_S / CALM / 2).state == "firing"
    assert after(FIRING, (["ok"] * (CALM - 1) + ["warning"]) * 3, step_s=10).state == "firing"


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("oom", "oom"),
        ("lost_contact", "lost_contact"),
        ("completed", "finished"),
        ("failed", "finished"),
    ],
)
def test_6_the_end_of_the_run_ends_a_firing_alert(status, state):
    assert state_after_run(FIRING, status, 9.0).state == state


def test_6_a_pending_alert_ends_without_a_notification_unless_it_was_right():
    pending = RuleState("pending", "warning", 1, 0.0)
    assert (
        state_after_run(pending, "completed", 9.0) == RuleState()
        and state_after_run(pending, "oom", 9.0).state == "oom"
    )
    assert state_after_run(RuleState(), "oom", 9.0) == RuleState()


@given(st.lists(st.sampled_from(["ok", "notice", "warning", "critical"]), max_size=200))
def test_7_only_a_calm_run_that_sends_samples_is_averted(levels):
    state, calm = RuleState(), 0
    for second, level in enumerate(levels):
        before, state = state, next_state(state, level, float(second))
        calm = 0 if level in ("warning", "critical") else calm + 1
        if state.state == "averted" and before.state != "averted":
            assert before.state == "firing" and calm >= CALM
        assert state.state not in ("finished", "oom", "lost_contact")
        if before.state == state.state == "firing":
            assert (before.severity, state.severity) != ("critical", "warning")


@pytest.mark.parametrize("final", FINAL)
def test_8_a_final_state_does_not_change_and_a_new_page_is_a_new_alert(final):
    over = RuleState(final, "critical", 0, 0.0)
    assert next_state(over, "ok", 1.0) == over and state_after_run(over, "oom", 1.0) == over
    assert next_state(over, "warning", 1.0) == RuleState("pending", "warning", 1, 1.0)


def test_9_late_samples_confirm_nothing():
    state = RuleState()
    for second in range(10):
        state = next_state(state, "critical", float(second), may_fire=False)
    assert (state.state, state.severity) == ("pending", "critical")
    assert next_state(state, "warning", 11.0).state == "firing"
    with pytest.raises(TypeError, match="positional"):
        next_state(state, "warning", 11.0, PER_SAMPLE, False)


def test_a_note_fires_after_its_own_delay_and_can_escalate():
    hysteresis = Hysteresis(confirm=2, calm=1, hold_s=0.0)
    state = next_state(next_state(RuleState(), "note", 0.0, hysteresis), "note", 1.0, hysteresis)
    assert (state.state, state.severity) == ("firing", "note")
    assert next_state(state, "critical", 2.0, hysteresis).severity == "critical"
    assert next_state(state, "ok", 2.0, hysteresis).state == "averted"


def test_the_worst_alert_makes_the_incident():
    assert worst_state("averted", "firing", "finished") == "firing"
    assert worst_state("averted", "oom", "firing") == "oom"
    assert worst_state("ok", "averted") == "averted"


def test_samples_fire_after_three_and_clear_after_thirty_and_twenty_seconds():
    assert Hysteresis(confirm=3, calm=30, hold_s=20.0) == PER_SAMPLE == Hysteresis()
    state = RuleState("firing", "warning", 29, 100.0)
    assert next_state(state, "ok", 119.9) == RuleState("firing", "warning", 30, 100.0)
    assert next_state(state, "ok", 120.0) == RuleState("averted", "warning", 0, 120.0)
    late = RuleState("firing", "warning", 45, 100.0)
    assert next_state(late, "ok", 120.0) == RuleState("averted", "warning", 0, 120.0)
    assert RuleState() == RuleState("ok", "warning", 0, 0.0)


def test_a_state_holds_the_count_and_the_time_of_its_last_change():
    pending = next_state(RuleState(), "warning", 5.0)
    assert pending == RuleState("pending", "warning", 1, 5.0)
    assert next_state(pending, "warning", 6.0) == RuleState("pending", "warning", 2, 6.0)
    firing = next_state(RuleState("pending", "warning", 2, 6.0), "warning", 7.0)
    assert firing == RuleState("firing", "warning", 0, 7.0)
    calmer = next_state(firing, "ok", 8.0)
    assert calmer == RuleState("firing", "warning", 1, 7.0)
    assert next_state(calmer, "critical", 9.0) == RuleState("firing", "critical", 0, 7.0)
    assert next_state(calmer, "note", 9.0) == RuleState("firing", "warning", 0, 7.0)


def test_a_count_of_two_becomes_three():
    patient = Hysteresis(confirm=9, calm=CALM, hold_s=HOLD_S)
    pending = RuleState("pending", "warning", 2, 6.0)
    assert next_state(pending, "warning", 7.0, patient) == RuleState("pending", "warning", 3, 7.0)


def test_6_an_ended_alert_holds_its_severity_and_the_time_of_the_end():
    state = RuleState("firing", "critical", 4, 7.0)
    assert state_after_run(state, "failed", 9.0) == RuleState("finished", "critical", 0, 9.0)
    pending = RuleState("pending", "critical", 2, 7.0)
    assert state_after_run(pending, "oom", 9.0) == RuleState("oom", "critical", 0, 9.0)
    assert state_after_run(pending, "lost_contact", 9.0) == RuleState()


def test_8_a_new_page_does_not_inherit_the_old_severity():
    over = RuleState("averted", "critical", 7, 0.0)
    assert next_state(over, "note", 1.0) == RuleState("pending", "note", 1, 1.0)


def test_a_pending_alert_takes_the_worst_severity():
    pending = RuleState("pending", "warning", 1, 0.0)
    assert next_state(pending, "note", 1.0) == RuleState("pending", "warning", 2, 1.0)
    note = RuleState("pending", "note", 1, 0.0)
    assert next_state(note, "warning", 1.0) == RuleState("pending", "warning", 2, 1.0)
    assert next_state(RuleState(), "note", 1.0).severity == "note"


def test_states_are_ordered_from_deaths_to_ok():
    order = ["oom", "lost_contact", "firing", "pending", "finished", "averted", "ok"]
    for number, state in enumerate(order):
        assert worst_state(*reversed(order[number:])) == state
    assert worst_severity("note", "critical", "warning") == "critical"
    assert worst_severity("note", "warning") == "warning"


@pytest.mark.parametrize("state", ["ok", "pending", "firing", *FINAL])
def test_a_state_is_open_final_or_ok(state):
    one = RuleState(state)
    assert (one.is_open, one.is_final) == (state in {"pending", "firing"}, state in FINAL)
    assert FINAL == ("averted", "finished", "oom", "lost_contact")


def test_states_are_immutable():
    for one, name in ((RuleState(), "state"), (PER_SAMPLE, "calm")):
        with pytest.raises(FrozenInstanceError):
            setattr(one, name, "ok")
