"""The texts of incidents: their changes, and what an open one says now."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memagent_server.schemas.alerts import Incident, IncidentSummary
from memagent_server.web import incident_views
from tests.server.web.schema_examples import ALERT, FIRED, LEAK_SUMMARY, RUN, STARTED_AT


def an_incident(*alerts):
    summary = {name: getattr(ALERT, name, None) for name in IncidentSummary.__struct_fields__}
    return Incident(**{**summary, "cause": "leak"}, alerts=list(alerts))


def test_an_incident_merges_the_changes_of_its_ranks():
    later = replace(FIRED, at="2025-12-31T23:55:00.000Z", reason="of rank 1")
    averted = replace(later, step=20, to_state="averted", reason="memory was freed")
    view = incident_views.incident_view(
        an_incident(
            replace(
                ALERT, rank=1, state="averted", summary="of rank 1", transitions=[later, averted]
            ),
            replace(ALERT, transitions=[FIRED]),
        )
    )
    assert view == incident_views.IncidentView(
        ALERT.summary,
        ALERT.step,
        ALERT.updated_at,
        [incident_views.Change(FIRED, "2 ranks: 0, 1"), incident_views.Change(averted, "rank 1")],
        notifications=[],
    )


def test_an_open_forecast_is_evaluated_at_the_newest_step_of_its_run():
    """An hour after it fired, a card says what is left now, as the page's headline does."""
    forecast = replace(LEAK_SUMMARY, step=100, eta_step=600.0, eta_s=1000.0)
    run = replace(RUN, status="running", step=500, forecast=forecast)
    view = incident_views.incident_view(an_incident(ALERT), run)
    assert view.summary == "Runs out of memory in about 100 steps (3 min)."
    assert (view.step, view.at) == (500, run.last_seen_at)
    for other in (replace(run, status="oom"), replace(run, forecast=None), None):
        assert incident_views.incident_view(an_incident(ALERT), other).summary == ALERT.summary
    averted = replace(an_incident(ALERT), closed_at=STARTED_AT)
    assert incident_views.incident_view(averted, run).summary == ALERT.summary
    of_another_cause = replace(an_incident(ALERT), cause="eval")
    assert incident_views.incident_view(of_another_cause, run).summary == ALERT.summary


def test_a_reason_that_the_summary_repeats_is_left_out():
    repeated = replace(FIRED, reason=ALERT.summary)
    (change,) = incident_views.incident_view(
        an_incident(replace(ALERT, transitions=[repeated]))
    ).changes
    assert change.transition.reason == ""


@pytest.mark.parametrize(
    ("severities", "texts"),
    [
        (("warning", "critical"), ["firing", "critical"]),
        (("note", "warning"), ["noted", "warning"]),
        (("critical", "critical"), ["firing", "firing"]),  # a reminder after a snooze
    ],
)
def test_an_escalation_is_called_by_its_severity_and_keeps_its_reason(severities, texts):
    before, after = severities
    later = replace(
        FIRED, from_state="firing", severity=after, reason=ALERT.summary, step=FIRED.step + 1
    )
    alert = replace(ALERT, transitions=[replace(FIRED, severity=before), later])
    changes = incident_views.incident_view(an_incident(alert)).changes
    assert [incident_views.change_badge(item).text for item in changes] == texts
    is_kept = texts[1] != "firing"
    assert changes[-1].transition.reason == (ALERT.summary if is_kept else "")


def test_an_incident_shows_its_newest_changes():
    changes = [replace(FIRED, step=step) for step in range(incident_views.MAX_CHANGES_SHOWN + 3)]
    view = incident_views.incident_view(an_incident(replace(ALERT, transitions=changes)))
    assert view.hidden_changes == 3 and [item.transition for item in view.changes] == changes[3:]


def test_a_firing_warning_is_less_severe_than_a_firing_critical_alert():
    assert incident_views.state_badge("firing", "warning").tone == "warning"
    assert incident_views.state_badge("firing", "critical").tone == "critical"


def test_an_ended_incident_says_how_early_people_were_warned():
    died = replace(ALERT, state="oom", first_step=880, step=1198)
    later = replace(died, first_step=900, step=1200)
    incident = replace(an_incident(died, later), rule="oom_forecast", state="oom")
    assert incident_views.outcome(incident) == "warned 321 steps before"
    assert incident_views.outcome(replace(incident, state="averted")) == "leak"
    assert incident_views.outcome(replace(incident, severity="note")) == "noted, no warning"
    for was_warned, text in ((False, "no warning"), (True, "warned before")):
        alert = replace(died, data={"was_warned": was_warned})
        sudden = replace(an_incident(alert), rule="oom", cause=None, state="oom")
        assert incident_views.outcome(sudden) == text


def test_what_was_open_at_one_death_is_one_row_that_says_when_it_was_warned():
    died = replace(ALERT, state="oom", first_step=193, step=1266)
    ended = {"state": "oom", "closed_at": STARTED_AT}
    warning = replace(an_incident(died), id=3, rule="oom_forecast", **ended)
    notes = [replace(warning, id=number, rule="leak", severity="note") for number in (4, 2)]
    averted = replace(warning, id=1, state="averted")
    again = replace(warning, id=5, closed_at="2026-01-01T01:00:00.000Z")
    rows = incident_views.ended_rows([again, notes[0], warning, notes[1], averted])
    assert [row.incident for row in rows] == [again, warning, averted]
    assert [row.others for row in rows] == [[], notes, []]
    assert incident_views.outcome(rows[1].incident) == "warned 1,074 steps before"
