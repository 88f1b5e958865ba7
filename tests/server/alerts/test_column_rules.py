"""Rules about columns on SQLite and PostgreSQL: alerts of running runs, once each."""

from __future__ import annotations

import pytest

from memagent.wire.messages import Batch, Chunk
from memagent_server.alerts.column_rules import EVERY_S, TAKEN_OVER_S
from memagent_server.store.rules import forget_column_rule, put_column_rule, put_rule
from memagent_server.store.samples import add_batch

NAN = float("nan")


class Logged:
    """A run that logs scalars, a step a second; the worker evaluates after each batch."""

    def __init__(self, bench) -> None:
        self.bench = bench
        self.seq = self.step = 0
        bench.start()

    def log(self, *values, column: str = "loss", late_s: float = 0.0, run_id: str = "r") -> None:
        steps = range(self.step, self.step + len(values))
        columns = {
            "step": list(steps),
            "time_s": [self.bench.now + number for number in range(len(values))],
            column: list(values),
        }
        self.step += len(values)
        self.bench.now += len(values) + late_s
        with self.bench.database.write() as session:
            batch = Batch(seq=self.seq, chunks=[Chunk(stream="scalars", columns=columns)])
            add_batch(session, run_id, batch, self.bench.now, live=self.bench.live)
        self.seq += 1
        self.evaluate()

    def evaluate(self) -> None:
        self.bench.now += EVERY_S
        self.bench.worker.evaluate()

    def set_rule(self, name="Loss", project="default", **rule) -> None:
        values = {"column": "loss", "test": "above", "value": 5.0, "for_s": 0.0, "level": "warning"}
        with self.bench.database.write() as session:
            put_column_rule(
                session, project=project, name=name, by=None, now=self.bench.now, **values | rule
            )


@pytest.fixture
def logged(bench) -> Logged:
    return Logged(bench)


def test_an_alert_fires_notifies_once_and_is_over(bench, logged):
    logged.set_rule()
    logged.log(1.0, 2.0)
    assert bench.alerts() == []
    logged.log(3.0, 7.5)
    logged.log(8.0)
    (alert,) = bench.alerts()
    assert (alert.rule, alert.state, alert.step, alert.device) == ("column", "firing", 3, "scalars")
    assert alert.summary == "loss has been above 5: 7.5"
    assert bench.incidents()[0].cause == "Loss"
    bench.now += 60
    logged.log(1.0, 1.0, 1.0)
    assert bench.path() == ["pending", "firing", "averted"]
    assert bench.notified_states() == ["firing"]


def test_it_tests_readings_of_devices(bench, logged):
    logged.set_rule(column="allocated_bytes", value=2.0 * 2**30)
    bench.feed(0, 3, lambda step: 3.0, seq=0)
    logged.evaluate()
    (alert,) = bench.alerts()
    assert alert.device == "host" and "above 2.00 GiB: 3.00 GiB" in alert.summary


def test_nan_is_found_and_stored(bench, logged):
    logged.set_rule(test="not_finite", level="critical")
    logged.log(1.0, NAN, 2.0)
    (alert,) = bench.alerts()
    assert (alert.severity, alert.step, alert.data["value"]) == ("critical", 1, "nan")


def test_rules_of_one_column_are_incidents_of_their_own(bench, logged):
    logged.set_rule("High")
    logged.set_rule("Very high", value=50.0, level="critical")
    logged.log(60.0)
    assert {incident.cause for incident in bench.incidents()} == {"High", "Very high"}
    assert bench.notified_states() == ["firing", "firing"]


def test_a_note_is_listed_and_not_sent(bench, logged):
    logged.set_rule(level="note")
    logged.log(60.0)
    assert [alert.state for alert in bench.notes("column")] == ["firing"]
    assert bench.notified_states() == []


def test_a_project_has_its_own_rules_and_those_of_every_project(bench, logged):
    logged.set_rule("Every", project="*", value=50.0)
    logged.set_rule("Every", value=5.0)
    logged.set_rule("Other", project="nlp", value=0.0)
    logged.log(7.0)
    assert [incident.cause for incident in bench.incidents()] == ["Every"]


def test_a_removed_rule_closes_its_alert(bench, logged):
    logged.set_rule()
    logged.log(7.0)
    with bench.database.write() as session:
        forget_column_rule(session, "default", "Loss")
    logged.log(8.0)
    (alert,) = bench.alerts()
    assert alert.state == "averted" and "removed" in alert.transitions[-1].reason


def test_a_rule_that_is_switched_off_closes_its_alert(bench, logged):
    logged.set_rule()
    logged.log(7.0)
    with bench.database.write() as session:
        put_rule(
            session, project="default", rule="column", is_on=False, tells="warning", thresholds={},
            by=None, now=bench.now,
        )  # fmt: skip
    logged.log(8.0)
    assert bench.alerts()[0].state == "averted"


def test_a_restarted_worker_sends_nothing_twice(bench, logged):
    logged.set_rule()
    logged.log(7.0)
    bench.now += TAKEN_OVER_S
    bench.worker = bench.new_worker()
    logged.log(8.0)
    assert len(bench.alerts()) == 1 and bench.notified_states() == ["firing"]
    bench.now += 60
    logged.log(1.0, 1.0, 1.0)
    bench.worker = bench.new_worker()
    logged.evaluate()
    logged.log(1.0)
    assert len(bench.alerts()) == 1 and bench.notified_states() == ["firing"]


def test_late_samples_decide_nothing(bench, logged):
    logged.set_rule()
    logged.log(7.0, late_s=120.0)
    assert bench.alerts() == []


def test_the_end_of_the_run_closes_its_alert(bench, logged):
    logged.set_rule()
    logged.log(7.0)
    bench.finish("completed", 2)
    bench.worker.evaluate()
    assert bench.path() == ["pending", "firing", "finished"]
    assert bench.notified_states() == ["firing"]


def test_a_column_of_other_values_is_skipped(bench, logged):
    logged.set_rule()
    logged.log(None, None, 7)
    assert bench.alerts()[0].step == 2
