"""Worker on SQLite and PostgreSQL: which notifications, when, and how often."""

from __future__ import annotations

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError

from memagent_server.alerts import evaluator
from memagent_server.alerts.incident_updates import IncidentTransaction
from memagent_server.store.forecasts import forecasts_of, latest_risk
from memagent_server.store.models import ChunkRow, NotificationRow, RunRow
from memagent_server.store.runs import delete_run
from memagent_server.worker import LOST_AFTER_S, Worker


def leak(step: int) -> float:
    return 10 + 0.02 * step


def flat(step: int) -> float:
    return 20.0


def test_a_leak_fires_once_and_notifies_every_channel(bench):
    bench.start()
    for number in range(15):
        bench.feed(100 * number, 100 * number + 100, leak, seq=number)
        bench.worker.evaluate()
    (alert,) = bench.alerts()
    assert (alert.rule, alert.state, alert.run_name, alert.device) == (
        "oom_forecast",
        "firing",
        "gpt",
        "host",
    )
    assert bench.path()[:2] == ["pending", "firing"]
    assert 700 < alert.first_step < 1000 and alert.data["cause"] == "leak"
    assert {item.channel for item in alert.notifications} == {"slack_webhook", "webhook"}
    with bench.database.read() as session:
        risk = latest_risk(session.connection(), "r", 0)
        history = forecasts_of(session, "r")
    assert risk.level in ("warning", "critical") and abs(risk.eta_step - 1500) < 60
    assert history.history[0].level == "ok" and history.forecasts[0].level == risk.level


def test_each_change_notifies_each_channel_once(bench):
    bench.start()
    bench.feed(0, 1200, leak, seq=0)
    bench.worker.evaluate()
    bench.finish("oom", 1200)
    bench.worker.evaluate()
    bench.worker.evaluate()
    (alert,) = bench.alerts()
    notified = [item for item in alert.transitions if item.to_state != "pending"]
    assert len(alert.notifications) == 2 * len(notified)


@pytest.mark.parametrize(
    ("status", "state", "words"),
    [
        ("oom", "oom", "ran out of memory"),
        ("completed", "finished", "completed"),
        ("failed", "finished", "failed"),
    ],
)
def test_the_end_of_the_run_closes_its_alert_with_a_reason(bench, status, state, words):
    bench.start()
    bench.feed(0, 1200, leak, seq=0)
    bench.worker.evaluate()
    bench.finish(status, 1200)
    bench.worker.evaluate()
    assert bench.path()[-1] == state and bench.alerts()[0].closed_at
    assert bench.alerts()[0].transitions[-1].reason.startswith(f"the run {words}")


def test_a_run_that_dies_between_two_turns_is_still_evaluated_to_its_end(bench):
    bench.start()
    bench.feed(0, 500, leak, seq=0)
    bench.worker.evaluate()
    bench.feed(500, 1450, leak, seq=1)
    bench.finish("oom", 1450)
    bench.worker.evaluate()
    assert bench.path()[-1] == "oom" and "firing" in bench.path() and len(bench.alerts()) == 1


def test_a_healthy_run_leaves_no_alert(bench):
    bench.start()
    for number in range(10):
        bench.feed(100 * number, 100 * number + 100, flat, seq=number)
        bench.worker.evaluate()
    bench.finish("completed", 1000)
    bench.worker.evaluate()
    assert bench.alerts() == []


def test_an_unpredicted_out_of_memory_is_notified(bench):
    bench.start()
    bench.feed(0, 100, flat, seq=0)
    bench.worker.evaluate()
    bench.finish("oom", 100)
    bench.worker.evaluate()
    (alert,) = bench.alerts()
    assert (alert.rule, alert.state, alert.step) == ("oom", "oom", 100) and len(
        alert.notifications
    ) == 2


def test_growth_that_stops_is_averted(bench):
    bench.start()
    bench.feed(0, 1200, leak, seq=0)
    bench.worker.evaluate()
    for number in range(1, 30):
        bench.feed(1100 + 100 * number, 1200 + 100 * number, lambda step: 20.0, seq=number)
        bench.worker.evaluate()
    assert bench.path()[-1] == "averted"


@pytest.mark.parametrize(
    ("turn_s", "processor_s", "status"),
    [(100.0, 0.0, "running"), (50.0, 1.0, "running"), (50.0, 45.0, "lost_contact")],
    ids=["suspended", "starved", "slow"],
)
def test_a_worker_that_waits_within_a_turn_counts_no_silence(bench, turn_s, processor_s, status):
    """Web processes of that machine waited as well, so agents could reach none."""
    used = [0.0]
    bench.worker = Worker(
        bench.database,
        bench.settings,
        lambda: bench.now,
        steady=lambda: bench.now,
        processor=lambda: used[0],
    )
    bench.start()
    evaluate = bench.worker._evaluator.turn

    def evaluate_slowly(now):
        bench.now += turn_s
        used[0] += processor_s
        return evaluate(now)

    bench.worker._evaluator.turn = evaluate_slowly
    for _ in range(4):
        bench.worker.evaluate()
    with bench.database.read() as session:
        assert session.get_one(RunRow, "r").status == status
    bench.worker._evaluator.turn = evaluate
    bench.be_silent(LOST_AFTER_S + 20)
    with bench.database.read() as session:
        assert session.get_one(RunRow, "r").status == "lost_contact", "the silence goes on"


def test_silence_resolves_nothing_and_becomes_lost_contact(bench):
    bench.start()
    bench.feed(0, 1200, leak, seq=0)
    bench.worker.evaluate()
    bench.be_silent(80)
    assert bench.alerts()[0].state == "firing"
    bench.be_silent(30)
    with bench.database.read() as session:
        assert session.get_one(RunRow, "r").status == "lost_contact"
    assert bench.path()[-1] == "lost_contact"


def test_a_run_that_falls_silent_without_warning_is_notified_once(bench):
    bench.start()
    bench.feed(0, 100, flat, seq=0)
    bench.worker.evaluate()
    bench.be_silent(130)
    (alert,) = bench.alerts()
    assert (alert.rule, alert.state) == ("lost_contact", "lost_contact")


@pytest.mark.parametrize("why", ["the server was down", "the machine slept"])
def test_a_run_during_an_outage_is_not_given_up(bench, why):
    bench.start()
    bench.feed(0, 100, flat, seq=0)
    bench.worker.evaluate()
    bench.now += 600
    if why == "the server was down":
        bench.worker = bench.new_worker()
    bench.worker.evaluate()
    bench.be_silent(80)
    assert bench.alerts() == []
    bench.be_silent(20)
    assert [alert.rule for alert in bench.alerts()] == ["lost_contact"]


def test_a_run_during_an_outage_while_the_database_was_away_is_not_given_up(bench):
    bench.start()
    bench.feed(0, 100, flat, seq=0)
    bench.worker.evaluate()
    with bench.database.write() as session:
        session.execute(text("ALTER TABLE runs RENAME TO away"))
    for _ in range(60):
        bench.now += 5
        with pytest.raises(DBAPIError):
            bench.worker.evaluate()
    with bench.database.write() as session:
        session.execute(text("ALTER TABLE away RENAME TO runs"))
    bench.be_silent(80)
    assert bench.alerts() == []


def test_a_new_worker_continues_where_the_old_one_stopped(bench):
    bench.start()
    bench.feed(0, 1200, leak, seq=0)
    bench.worker.evaluate()
    before = bench.path()
    forecasts = bench.forecast_steps()
    bench.worker = bench.new_worker()
    bench.worker.evaluate()
    assert bench.forecast_steps() == forecasts, "those of the old worker are in the store"
    bench.feed(1200, 1220, leak, seq=1)
    bench.worker.evaluate()
    assert [state for state in bench.path() if state != "firing"] == [
        state for state in before if state != "firing"
    ]
    assert len(bench.alerts()) == 1


def test_a_worker_that_starts_late_still_warns(bench):
    bench.start()
    bench.feed(0, 1200, leak, seq=0)
    bench.worker.evaluate()
    assert bench.alerts()[0].state == "firing"


@pytest.mark.parametrize("where", ["reading", "writing"])
def test_a_failing_run_does_not_stop_the_others(bench, monkeypatch, where):
    for run_id in ("bad", "good"):
        bench.start(run_id)
        bench.feed(0, 1200, leak, seq=0, run_id=run_id)
    broken, works = (
        (evaluator, evaluator.evaluate_chunks)
        if where == "reading"
        else (IncidentTransaction, IncidentTransaction.apply)
    )

    def break_one(*arguments):
        if any(getattr(argument, "run_id", argument) == "bad" for argument in arguments):
            raise RuntimeError("broken")
        return works(*arguments)

    monkeypatch.setattr(broken, works.__name__, break_one)
    bench.worker.evaluate()
    assert {alert.run_id for alert in bench.alerts()} == {"good"}
    monkeypatch.undo()
    bench.worker.evaluate()
    assert {alert.run_id for alert in bench.alerts()} == {"good", "bad"}


def test_a_failing_run_is_retried_at_growing_intervals(bench, monkeypatch):
    tried = []
    monkeypatch.setattr(
        evaluator, "evaluate_chunks", lambda *arguments: tried.append(arguments) or 1 / 0
    )
    bench.start()
    bench.feed(0, 10, flat, seq=0)
    for _ in range(32):
        bench.worker.evaluate()
    assert len(tried) == 6  # in turns 1, 2, 4, 8, 16 and 32


def test_a_damaged_chunk_is_skipped_and_logged(bench, caplog):
    bench.start()
    bench.feed(0, 600, leak, seq=0)
    bench.feed(600, 610, leak, seq=1)
    with bench.database.write() as session:
        session.execute(
            update(ChunkRow).where(ChunkRow.seq == 609).values(packed=b"MAC1 and nothing else")
        )
    bench.feed(610, 1200, leak, seq=2)
    bench.worker.evaluate()
    assert bench.alerts()[0].state == "firing"
    assert caplog.text.count("chunk 609 of run r, rank 0, host cannot be read") == 1


def test_a_run_deleted_during_a_turn_is_skipped(bench):
    bench.start()
    bench.feed(0, 1200, leak, seq=0)
    bench.worker.evaluate()
    with bench.database.write() as session:
        delete_run(session, "r")
    bench.worker.evaluate()
    bench.worker.evaluate()
    assert bench.alerts() == []


def test_dispatching_fails_softly_and_is_visible(bench):
    bench.start()
    bench.feed(0, 1200, leak, seq=0)
    bench.worker.turn()
    with bench.database.read() as session:
        waiting = session.scalars(select(NotificationRow)).all()
    assert waiting and all(item.state == "waiting" and item.attempts == 1 for item in waiting)
    assert all("127.0.0.1:9" not in (item.last_error or "") and item.last_error for item in waiting)
