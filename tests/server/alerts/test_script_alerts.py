"""Alerts of scripts on SQLite and PostgreSQL: one incident a title, notified once."""

from __future__ import annotations

import pytest

from memagent.wire.messages import Batch, Event
from memagent_server.alerts.event_rules import SCRIPT
from memagent_server.alerts.script_alerts import FURTHER_TITLE, MAX_OPEN, read_alert
from memagent_server.store.events import runs_with_pending_events
from memagent_server.store.incidents import lock_incident, snooze
from memagent_server.store.rules import put_rule
from memagent_server.store.samples import add_batch

QUIET_S = SCRIPT.thresholds[0].default


class Script:
    """A run whose script raises alerts; the worker evaluates after each batch."""

    def __init__(self, bench) -> None:
        self.bench = bench
        self.seq = 0
        bench.start()

    def raises(self, *alerts: dict, step: int = 5, evaluate: bool = True) -> None:
        events = [
            Event(kind="alert", step=step, time_s=self.bench.now, data=data) for data in alerts
        ]
        with self.bench.database.write() as session:
            batch = Batch(seq=self.seq, events=events)
            add_batch(session, "r", batch, self.bench.now, live=self.bench.live)
        self.seq += 1
        if evaluate:
            self.bench.worker.evaluate()

    def pending(self) -> list[str]:
        with self.bench.database.read() as session:
            return runs_with_pending_events(session)


@pytest.fixture
def script(bench) -> Script:
    return Script(bench)


def nan(level: str = "warning", **data) -> dict:
    return {"title": "Loss is NaN", "text": "at lr 1e-3", "level": level, **data}


def test_an_alert_fires_and_notifies_every_channel_once(bench, script):
    script.raises(nan())
    bench.worker.evaluate()
    (alert,) = bench.alerts()
    assert (alert.rule, alert.state, alert.severity, alert.step) == (
        "script",
        "firing",
        "warning",
        5,
    )
    assert alert.summary == "reports: Loss is NaN" and alert.data["text"] == "at lr 1e-3"
    assert bench.incidents()[0].cause == "Loss is NaN"
    assert bench.notified_states() == ["firing"] and script.pending() == []


def test_a_repetition_counts_and_notifies_only_if_it_is_more_severe(bench, script):
    script.raises(nan())
    script.raises(nan(count=40), nan(count=2), step=9)
    (alert,) = bench.alerts()
    assert alert.summary == "reports: Loss is NaN (43 times)" and (
        alert.first_step,
        alert.step,
    ) == (5, 9)
    assert bench.notified_states() == ["firing"]
    script.raises(nan("critical"))
    assert bench.notified_states() == ["firing", "firing"]
    assert bench.alerts()[0].severity == "critical"


def test_titles_are_incidents_of_their_own(bench, script):
    script.raises(nan(), {"title": "Gradients explode", "level": "critical"})
    assert {incident.cause for incident in bench.incidents()} == {
        "Loss is NaN",
        "Gradients explode",
    }
    assert bench.notified_states() == ["firing", "firing"]


def test_a_note_is_listed_and_not_sent(bench, script):
    script.raises(nan("note"))
    assert [alert.state for alert in bench.notes("script")] == ["firing"]
    assert bench.notified_states() == []


def test_it_is_over_when_it_is_not_repeated_and_nobody_is_notified(bench, script):
    script.raises(nan())
    bench.be_silent(60)
    bench.feed(100, 101, lambda step: 1.0, seq=script.seq)
    bench.now += QUIET_S
    bench.worker.evaluate()
    assert bench.path() == ["pending", "firing", "averted"]
    assert bench.notified_states() == ["firing"]
    script.seq += 1
    script.raises(nan())
    assert bench.notified_states() == ["firing", "firing"]


@pytest.mark.parametrize(("status", "state"), [("completed", "finished"), ("failed", "finished")])
def test_an_alert_of_the_last_moment_is_sent_after_the_end(bench, script, status, state):
    script.raises(nan(), evaluate=False)
    bench.finish(status, 5)
    bench.worker.evaluate()
    bench.worker.evaluate()
    assert bench.path() == ["pending", "firing", state]
    assert bench.notified_states() == ["firing"]


def test_the_death_of_the_run_is_told_by_its_own_rule(bench, script):
    script.raises(nan())
    bench.finish("oom", 6)
    bench.worker.evaluate()
    bench.worker.evaluate()
    assert {alert.rule: alert.state for alert in bench.alerts()} == {"script": "oom", "oom": "oom"}
    assert bench.notified_states() == ["firing", "oom"]


def test_a_snooze_mutes_repetitions(bench, script):
    script.raises(nan())
    with bench.database.write() as session:
        incident = lock_incident(session, bench.alerts()[0].id)
        snooze(session, incident, until=bench.now + 600, by="ana", note=None, now=bench.now)
    script.raises(nan("critical"))
    assert bench.notified_states() == ["firing"]


def test_a_project_switches_it_off(bench, script):
    with bench.database.write() as session:
        put_rule(
            session, project="default", rule="script", is_on=False, tells="warning", thresholds={},
            by=None, now=bench.now,
        )  # fmt: skip
    script.raises(nan())
    assert bench.alerts() == [] and script.pending() == []


def test_an_uploaded_run_alerts_nobody(bench, script):
    bench.live = False
    script.raises(nan())
    assert bench.alerts() == [] and script.pending() == []


def test_a_second_worker_notifies_nobody_again(bench, script):
    script.raises(nan(), evaluate=False)
    second = bench.new_worker()
    bench.worker.evaluate()
    second.evaluate()
    assert bench.notified_states() == ["firing"] and len(bench.alerts()) == 1


def test_a_flood_of_titles_is_bounded(bench, script):
    script.raises(*({"title": f"bad step {step}"} for step in range(1_000)))
    script.raises(*({"title": f"bad step {step}"} for step in range(1_000, 2_000)))
    titles = [alert.data["title"] for alert in bench.alerts()]
    assert len(titles) == MAX_OPEN + 1 and FURTHER_TITLE in titles
    assert len(bench.notified_states()) == MAX_OPEN + 1


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"title": ["a"], "text": {"b": 1}, "level": "fatal", "count": "many"},
        {"title": "", "text": None, "level": None, "count": -1},
        {"title": "t" * 10_000, "text": "x" * 100_000, "level": "critical", "count": True},
        {"title": "a\n\tb", "count": 2**70},
    ],
)
def test_any_data_becomes_an_alert_within_limits(data):
    alert = read_alert(data)
    assert len(alert.title) <= 200 and len(alert.text) <= 4_000 and alert.count == 1
    assert alert.level in ("warning", "critical") and "\n" not in alert.title
