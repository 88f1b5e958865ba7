"""Incidents: many ranks share one message, and feedback of people counts."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from memagent.units import DAY_S
from memagent.wire.messages import Batch, Chunk, Device, Finish, RunStart
from memagent_server.store.alert_accuracy import scoreboard
from memagent_server.store.incidents import acknowledge, lock_incident, mark_false, snooze
from memagent_server.store.models import FeedbackRow, IncidentRow
from memagent_server.store.rules import put_rule
from memagent_server.store.runs import delete_run, finish_run, start_run
from memagent_server.store.samples import add_batch

GIB = 2**30
LIMIT = 40 * GIB
START = 1_000_000.0


def leak(step: int) -> float:
    return 10 + 0.02 * step


def flat(step: int) -> float:
    return 20.0


class Job:
    """Several ranks with a GPU each."""

    def __init__(self, bench, world_size: int) -> None:
        self.bench = bench
        self.world_size = world_size
        self.seq = 0
        for rank in range(world_size):
            device = Device(id=f"gpu-{rank}", kind="cuda", name="GPU", limit_bytes=LIMIT)
            with bench.database.write() as session:
                start_run(
                    session,
                    RunStart(run_id="r", rank=rank, world_size=world_size, devices=[device]),
                    bench.now,
                )

    def feed(self, first: int, last: int, gib, *, ranks=None, evaluate: bool = True) -> None:
        steps = list(range(first, last))
        self.bench.now = START + last
        for rank in range(self.world_size) if ranks is None else ranks:
            sizes = [int(gib(step) * GIB) for step in steps]
            columns = {
                "step": steps, "time_s": [START + step for step in steps], "allocated_bytes": sizes, "peak_allocated_bytes": sizes,
                "limit_bytes": [LIMIT] * len(steps),
            }  # fmt: skip
            with self.bench.database.write() as session:
                batch = Batch(
                    rank=rank, seq=self.seq, chunks=[Chunk(stream=f"gpu-{rank}", columns=columns)]
                )
                add_batch(session, "r", batch, self.bench.now)
        self.seq += 1
        if evaluate:
            self.bench.worker.evaluate()

    def finish(self, status: str, step: int) -> None:
        for rank in range(self.world_size):
            with self.bench.database.write() as session:
                finish_run(
                    session, "r", Finish(status=status, step=step, rank=rank), self.bench.now
                )
        self.bench.worker.evaluate()


def say(bench, how, **facts) -> None:
    with bench.database.write() as session:
        how(
            session,
            lock_incident(session, bench.alerts()[0].id),
            by="ana",
            note="seen",
            now=bench.now,
            **facts,
        )


def test_eight_ranks_that_leak_are_one_incident_and_one_message_each_time(bench):
    job = Job(bench, 8)
    for number in range(13):
        job.feed(100 * number, 100 * number + 100, leak)
    (incident,) = bench.incidents()
    assert len(incident.alerts) == 8 and (incident.state, incident.cause) == ("firing", "leak")
    assert bench.notified_states() == ["firing"]
    job.finish("oom", 1400)
    (incident,) = bench.incidents()
    assert incident.state == "oom" and {alert.state for alert in incident.alerts} == {"oom"}
    assert bench.notified_states() == ["firing", "oom"]
    assert all("ran out of memory in step 1,4" in alert.summary for alert in incident.alerts)


def test_an_incident_is_over_when_the_last_of_its_ranks_is(bench):
    job = Job(bench, 2)
    job.feed(0, 1200, leak)
    for number in range(1, 25):
        job.feed(1100 + 100 * number, 1200 + 100 * number, flat, ranks=[0])
    assert bench.incidents()[0].state == "firing" and bench.notified_states() == ["firing"]
    job.seq = 25
    assert {alert.state for alert in bench.alerts()} == {"firing", "averted"}


def tell_of(bench, rule: str) -> None:
    """Let a rule notify of its warnings."""
    with bench.database.write() as session:
        put_rule(
            session, project="*", rule=rule, is_on=True, tells="warning", thresholds={}, by=None, now=bench.now
        )  # fmt: skip


def test_pending_alerts_are_stored_and_notify_only_when_confirmed(bench):
    tell_of(bench, "high_water")
    job = Job(bench, 1)
    job.feed(0, 20, lambda step: 39.5)
    assert [(alert.rule, alert.state) for alert in bench.alerts("pending")] == [
        ("high_water", "pending")
    ]
    job.feed(20, 40, flat)
    (alert,) = bench.alerts("ok")
    assert [change.to_state for change in alert.transitions] == ["pending", "ok"]
    assert bench.alerts() == [] and bench.notified_states() == []


def test_a_note_notifies_no_one(bench):
    job = Job(bench, 1)
    for number in range(4):
        job.feed(20 * number, 20 * number + 20, lambda step: 39.5)
    (note,) = bench.notes("high_water")
    assert (note.severity, note.state, note.notifications) == ("note", "firing", [])
    for number in range(4, 12):
        job.feed(20 * number, 20 * number + 20, flat)
    assert bench.notes("high_water")[0].state == "averted"


def test_the_summary_of_an_open_alert_follows_its_reading_and_notifies_no_one(bench):
    tell_of(bench, "high_water")
    job = Job(bench, 1)
    for number in range(4):
        job.feed(20 * number, 20 * number + 20, lambda step: 39.0)
    (alert,) = bench.alerts("firing")
    assert "39.00 GiB" in alert.summary
    versions = [alert.updated_at]
    for number, peak in ((4, 39.2), (5, 39.9), (6, 39.9)):
        job.feed(20 * number, 20 * number + 20, lambda step, peak=peak: peak)
        (now,) = bench.alerts("firing")
        versions.append(now.updated_at)
    assert "39.90 GiB" in now.summary and now.data["used_bytes"] == int(39.9 * GIB)
    assert (now.first_step, now.step) == (alert.first_step, 119)
    # a change below a hundredth isn't written, nor one that is written already
    assert versions[0] == versions[1] < versions[2] == versions[3]
    assert now.transitions == alert.transitions and bench.notified_states() == ["firing"]


def test_one_rank_that_needs_more_is_noted_once(bench):
    job = Job(bench, 3)
    for number in range(6):
        job.feed(20 * number, 20 * number + 20, lambda step: 10.0, ranks=[0, 1], evaluate=False)
        job.seq -= 1
        job.feed(20 * number, 20 * number + 20, lambda step: 14.0, ranks=[2])
    (note,) = bench.notes("rank_imbalance")
    assert (note.rank, note.state) == (2, "firing")
    assert "rank 2 peaks at 14.00 GiB" in note.summary


def test_a_stalled_run_is_noted_until_it_moves(bench):
    job = Job(bench, 1)
    job.feed(0, 100, flat)
    for _ in range(70):
        bench.now += 10
        with bench.database.write() as session:  # a heartbeat
            start_run(session, RunStart(run_id="r"), bench.now)
        bench.worker.evaluate()
    assert [note.state for note in bench.notes("stalled")] == ["firing"]
    for number in range(12):
        first = 800 + 10 * number
        job.feed(first, first + 10, flat)
    assert [note.state for note in bench.notes("stalled")] == ["averted"]


@pytest.mark.parametrize(
    "how", [{"is_on": False, "tells": "warning"}, {"is_on": True, "tells": "never"}]
)
def test_a_project_can_switch_a_rule_off_or_down_to_a_note(bench, how):
    with bench.database.write() as session:
        for rule in ("oom_forecast", "oom"):
            put_rule(session, project="default", rule=rule, thresholds={}, by=None, now=1.0, **how)
    job = Job(bench, 1)
    job.feed(0, 1200, leak)
    job.finish("oom", 1200)
    bench.worker.evaluate()
    assert bench.alerts() == [] and bench.notified_states() == []
    assert [note.rule for note in bench.notes("oom_forecast")] == (
        [] if not how["is_on"] else ["oom_forecast"]
    )
    assert len(bench.notes("oom")) == (0 if not how["is_on"] else 1)


def test_switching_a_rule_off_closes_its_alert(bench):
    job = Job(bench, 1)
    job.feed(0, 1200, leak)
    with bench.database.write() as session:
        put_rule(
            session,
            project="*",
            rule="oom_forecast",
            is_on=False,
            tells="warning",
            thresholds={},
            by=None,
            now=1.0,
        )
    job.feed(1200, 1210, leak)
    (alert,) = bench.alerts()
    assert alert.state == "averted" and alert.transitions[-1].reason == "the rule was switched off"


def test_an_acknowledgement_is_stored_with_its_name(bench):
    Job(bench, 2).feed(0, 1200, leak)
    say(bench, acknowledge)
    say(bench, acknowledge)
    (incident,) = bench.incidents()
    assert (incident.acked_by, incident.note, incident.state) == ("ana", "seen", "firing")
    with bench.database.read() as session:
        assert [(row.kind, row.cause) for row in session.scalars(select(FeedbackRow))] == [
            ("ack", "leak")
        ]


def test_a_snooze_suppresses_escalations_reminds_once_and_passes_the_end(bench):
    job = Job(bench, 1)
    job.feed(0, 1200, leak)
    say(bench, snooze, until=bench.now + 250)
    for number in range(12):
        job.feed(1200 + 20 * number, 1220 + 20 * number, leak)
    assert bench.alerts()[0].severity == "critical" and bench.notified_states() == ["firing"]
    for number in range(2):
        job.feed(1440 + 20 * number, 1460 + 20 * number, leak)
    assert bench.notified_states() == ["firing", "firing"]
    assert (
        bench.alerts()[0].transitions[-1].reason
        == "the snooze is over, and the alert is still firing"
    )
    job.finish("oom", 1480)
    assert bench.notified_states() == ["firing", "firing", "oom"]


@pytest.mark.parametrize(
    ("status", "states"), [("completed", ["firing"]), ("oom", ["firing", "oom"])]
)
def test_a_false_alarm_is_silent_unless_the_run_dies_and_counts_in_the_scoreboard(
    bench, status, states
):
    job = Job(bench, 1)
    job.feed(0, 1200, leak)
    say(bench, mark_false)
    job.feed(1200, 1440, leak)
    job.finish(status, 1440)
    assert bench.notified_states() == states
    with bench.database.write() as session:
        delete_run(session, "r")
        (row,) = session.scalars(select(FeedbackRow))
        assert (row.kind, row.project, row.incident_id) == ("false_alarm", "default", None)
        assert session.scalars(select(IncidentRow)).all() == []
        assert scoreboard(session, now=bench.now, days=10_000).total.called_false == 1


def test_the_scoreboard_counts_what_came_true_and_how_early(bench):
    job = Job(bench, 2)
    for number in range(14):
        job.feed(100 * number, 100 * number + 100, leak)
    job.finish("oom", 1450)
    bench.start("sudden", project="vision")
    bench.feed(1500, 1600, flat, seq=0, run_id="sudden")
    bench.worker.evaluate()
    bench.finish("oom", 1600, "sudden")
    bench.worker.evaluate()
    with bench.database.read() as session:
        result = scoreboard(session, now=bench.now, days=10_000)
        none = scoreboard(session, now=bench.now + 1 + DAY_S, days=1)
    total = result.total
    assert (total.warnings, total.came_true, total.unforeseen) == (1, 1, 1)
    assert (total.true_ratio, total.foreseen_ratio) == (1.0, 0.5)
    assert 500 < total.lead_steps < 800 and total.lead_s > 100
    assert [(row.name, row.unforeseen) for row in result.by_project] == [
        ("default", 0),
        ("vision", 1),
    ]
    assert [row.name for row in result.by_cause] == ["leak"]
    assert (result.ended_runs, none.ended_runs, none.costs) == (2, 0, [])
    own, dear = result.costs[0], result.costs[-1]
    assert (own.is_own, own.pages, own.needless, own.missed, own.cost) == (True, 1, 0, 1, 1.25)
    assert (dear.threshold, dear.pages, dear.missed, dear.cost) == (0.9, 0, 2, 2.0)
    assert none.total.warnings == 0 and none.total.true_ratio is None
