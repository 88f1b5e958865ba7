"""Averted incidents that open again, and answers to alerts that are taken back."""

from __future__ import annotations

import pytest

from memagent_server.store.alert_accuracy import scoreboard
from memagent_server.store.incidents import handle_incident, lock_incident

SNOOZE = "snooze"


@pytest.fixture
def growing(bench):
    """A bench whose run grows slowly, with a critical alert at step 193."""
    bench.start()
    bench.feed(0, 1267, lambda step: 1 + step / 1000, seq=0)
    bench.worker.evaluate()
    bench.warn(193, since=12)
    return bench


@pytest.mark.parametrize("answer", ["false-alarm", SNOOZE])
def test_an_incident_that_opens_again_is_not_muted_by_an_older_answer(growing, answer):
    _answer(growing, answer)
    growing.avert(464)
    growing.warn(740, since=12)
    (incident,) = growing.incidents()
    assert (incident.state, incident.false_alarm_at, incident.snoozed_until) == (
        "firing",
        None,
        None,
    )
    assert growing.notified_states()[-1] == "firing" and len(growing.notified_states()) > 1
    with growing.database.read() as session:
        total = scoreboard(session, now=growing.now, days=10_000).total
    assert (total.warnings, total.called_false) == (1, int(answer == "false-alarm"))


def test_a_note_in_an_incident_that_opens_again_notifies_no_one(growing):
    growing.avert(464)
    growing.warn(740, since=12, level="note")
    growing.avert(800)
    assert growing.notified_states() == ["firing", "averted"]
    (incident,) = growing.incidents()
    assert (incident.severity, len(incident.alerts)) == ("critical", 2)


def test_an_alert_that_is_never_confirmed_leaves_the_averted_incident_as_it_was(growing):
    _answer(growing, "ack")
    growing.avert(464)
    (before,) = growing.incidents()
    growing.warn(740, since=12, state="pending")
    assert before in growing.incidents()
    growing.avert(750, "ok")
    assert growing.incidents() == [before] and before.acked_by == "ana"


def test_an_answer_to_a_pending_alert_holds_when_its_incident_opens_again(growing):
    growing.avert(464)
    growing.warn(740, since=12, state="pending")
    _answer(growing, "ack")
    growing.warn(750, since=12)
    (incident,) = growing.incidents()
    assert (incident.state, incident.acked_by, len(incident.alerts)) == ("firing", "ana", 2)


@pytest.mark.parametrize("answer", ["false-alarm", SNOOZE])
def test_the_undo_of_an_answer_reminds_of_what_it_held_back(bench, answer):
    bench.start()
    bench.feed(0, 1267, lambda step: 1 + step / 1000, seq=0)
    bench.worker.evaluate()
    bench.warn(193, since=12, level="warning")
    _answer(bench, answer)
    bench.warn(250, since=12)
    assert bench.notified_states() == ["firing"]
    _answer(bench, "undo")
    for _ in range(2):
        bench.now += 10
        bench.worker.evaluate()
    assert bench.notified_states() == ["firing", "firing"]
    assert bench.alerts()[0].transitions[-1].severity == "critical"


def test_the_undo_of_an_answer_that_held_nothing_back_is_silent(growing):
    _answer(growing, SNOOZE)
    _answer(growing, "undo")
    growing.now += 10
    growing.worker.evaluate()
    assert growing.notified_states() == ["firing"]


def _answer(bench, action: str) -> None:
    bench.now += 1
    with bench.database.write() as session:
        incident = lock_incident(session, bench.alerts()[0].id)
        handle_incident(session, incident, action, by="ana", now=bench.now, snooze_s=1e6)
