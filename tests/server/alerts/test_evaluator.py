"""Evaluator under failures: restarts, a second worker, failed writes, reused ids, repeated ends."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import select, text

from memagent.wire.messages import Finish, RunStart
from memagent_server.store.models import NotificationRow, StreamRow
from memagent_server.store.rules import put_rule
from memagent_server.store.runs import delete_run, finish_run, get_run, start_run


def leak(step: int) -> float:
    return 10 + 0.02 * step


def flat(step: int) -> float:
    return 20.0


@pytest.fixture
def avert(bench):
    """A run whose alert has fired and been averted; its next batch is number 30, its next step 4100."""

    def avert() -> None:
        bench.start()
        bench.feed(0, 1200, leak, seq=0)
        bench.worker.evaluate()
        for number in range(1, 30):
            bench.feed(1100 + 100 * number, 1200 + 100 * number, flat, seq=number)
            bench.worker.evaluate()
        assert bench.path()[-1] == "averted"

    return avert


@pytest.mark.parametrize(("rate", "growing"), [(0.002, True), (0.0, False)])
def test_growth_without_a_warning_is_written_again_each_tenth_of_the_steps(bench, rate, growing):
    bench.start()
    for number in range(40):
        bench.feed(20 * number, 20 * number + 20, lambda step: 10 + rate * step, seq=number)
        bench.worker.evaluate()
    steps = bench.forecast_steps()
    assert not bench.alerts()
    assert (steps[-1] >= 0.9 * 800 - 20) == growing
    assert len(steps) <= 20 if growing else len(steps) == 1


def count_notifications(bench) -> int:
    with bench.database.read() as session:
        return len(session.scalars(select(NotificationRow)).all())


def test_a_warning_becomes_critical_once_and_notifies_of_both(bench):
    bench.start()
    for number in range(73):
        bench.feed(20 * number, 20 * number + 20, leak, seq=number)
        bench.worker.evaluate()
    (alert,) = bench.alerts()
    changes = [(item.from_state, item.to_state, item.severity) for item in alert.transitions]
    assert changes == [
        ("ok", "pending", "warning"), ("pending", "firing", "warning"), ("firing", "firing", "critical")
    ]  # fmt: skip
    assert alert.severity == "critical" and alert.first_step < alert.step
    assert count_notifications(bench) == 4


def set_rule(bench, tells: str, thresholds: dict) -> None:
    with bench.database.write() as session:
        put_rule(
            session, project="default", rule="oom_forecast", is_on=True, tells=tells, thresholds=thresholds, by=None, now=bench.now
        )  # fmt: skip


@pytest.mark.parametrize("tells", ["notice", "warning"])
def test_a_notice_is_sent_only_where_a_team_wants_it_and_says_may(bench, tells):
    set_rule(bench, tells, {"page_cost": 0.9})
    bench.start()
    bench.feed(0, 1200, leak, seq=0)
    bench.worker.evaluate()
    summaries = [alert.summary for alert in bench.alerts()]
    assert len(summaries) == (tells == "notice")
    assert all(summary.startswith("may run out of memory") for summary in summaries)


@pytest.mark.parametrize(("cost", "count"), [(0.25, 1), (0.9, 0)])
def test_a_project_decides_what_a_page_costs(bench, cost, count):
    set_rule(bench, "warning", {"page_cost": cost})
    bench.start()
    bench.feed(0, 1200, leak, seq=0)
    bench.worker.evaluate()
    assert len(bench.alerts()) == count


def test_two_workers_on_one_database_notify_once(bench):
    second = bench.new_worker()
    bench.start()
    for number in range(72):
        bench.feed(20 * number, 20 * number + 20, leak, seq=number)
        bench.worker.evaluate()
        second.evaluate()
    bench.finish("oom", 1440)
    second.evaluate()
    bench.worker.evaluate()
    assert len(bench.alerts()) == 1
    assert bench.notified_states() == ["firing", "firing", "oom"]
    assert count_notifications(bench) == 6


@pytest.mark.parametrize("ending", ["a leak", "silence"])
def test_simultaneous_workers_notify_once(bench, ending):
    workers = [bench.new_worker() for _ in range(4)]
    bench.start()
    bench.feed(0, 700, leak, seq=0)
    for worker in workers:
        worker.evaluate()
    assert bench.alerts() == []
    if ending == "a leak":
        bench.feed(700, 1300, leak, seq=1)
    else:
        for seconds in (20, 20, 20, 20, 15):  # all of them listen until the last moment
            for worker in workers:
                worker.evaluate()
            bench.now += seconds
    barrier = threading.Barrier(len(workers))

    def evaluate(worker) -> None:
        barrier.wait()
        worker.evaluate()

    threads = [threading.Thread(target=evaluate, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(bench.alerts()) == 1
    assert count_notifications(bench) == 2 * len(bench.notified_states())
    assert bench.notified_states() == (["firing"] if ending == "a leak" else ["lost_contact"])


def test_a_new_worker_does_not_refire_an_averted_alert(bench, avert):
    avert()
    bench.worker = bench.new_worker()
    bench.worker.evaluate()
    bench.feed(4100, 4200, flat, seq=30)
    bench.worker.evaluate()
    assert len(bench.alerts()) == 1 and bench.notified_states() == ["firing", "averted"]


def test_an_out_of_memory_after_an_averted_alert_is_notified(bench, avert):
    avert()
    bench.finish("oom", 4100)
    bench.worker.evaluate()
    bench.worker.evaluate()
    newest, first = bench.alerts()
    assert (first.rule, first.state) == ("oom_forecast", "averted")
    assert (newest.rule, newest.state) == ("oom", "oom") and len(newest.notifications) == 2
    assert "without a warning" not in newest.summary


def test_a_run_that_resumes_after_silence_and_dies_is_notified(bench):
    bench.start()
    bench.feed(0, 100, flat, seq=0)
    bench.be_silent(100)
    bench.feed(100, 200, flat, seq=1)
    bench.start(attempt=1)
    bench.worker.evaluate()
    with bench.database.read() as session:
        assert get_run(session, "r").status == "running"
    with bench.database.write() as session:
        finish_run(session, "r", Finish(status="oom", step=250, attempt=1), bench.now)
    bench.worker.evaluate()
    assert [alert.rule for alert in bench.alerts()] == ["oom", "lost_contact"]


def test_each_death_of_a_launch_is_notified(bench):
    for attempt in (0, 1):
        bench.start(attempt=attempt)
        bench.now += 10
        with bench.database.write() as session:
            finish_run(session, "r", Finish(status="oom", step=100, attempt=attempt), bench.now)
        bench.worker.evaluate()
        bench.worker.evaluate()
        bench.now += 10
    assert [alert.rule for alert in bench.alerts()] == ["oom", "oom"] and count_notifications(
        bench
    ) == 4


def test_each_silence_is_notified(bench):
    bench.start()
    bench.feed(0, 100, flat, seq=0)
    for seq in (1, 2):
        bench.be_silent(100)
        assert len(bench.alerts()) == seq
        bench.feed(100 + 200 * seq, 200 + 200 * seq, flat, seq=seq)
        bench.worker.evaluate()
    assert [alert.rule for alert in bench.alerts()] == [
        "lost_contact",
        "lost_contact",
    ] and count_notifications(bench) == 4


@pytest.mark.parametrize("has_streams", [True, False])
def test_runs_that_fall_silent_one_after_another_are_notified_once_each(bench, has_streams):
    runs = ["first", "second", "third"]
    for number, run_id in enumerate(runs):
        bench.start(run_id)
        if has_streams:
            bench.feed(200 * number, 200 * number + 100, flat, seq=0, run_id=run_id)
        bench.be_silent(100)
    bench.now += 4_000  # the hourly check of all runs is due
    bench.worker.evaluate()
    assert sorted(alert.run_id for alert in bench.alerts()) == runs
    assert bench.notified_states() == ["lost_contact"] * len(runs)


def test_an_upload_after_the_end_is_stored_without_alerts(bench):
    bench.live = False
    for run_id in ("silent", "dead"):
        bench.start(run_id)
        bench.feed(0, 1300, leak, seq=0, run_id=run_id)
    bench.finish("oom", 1300, "dead")
    bench.be_silent(300)
    with bench.database.read() as session:
        assert {run_id: get_run(session, run_id).status for run_id in ("silent", "dead")} == {
            "silent": "lost_contact",
            "dead": "oom",
        }
    assert bench.alerts() == []


def test_a_live_process_after_a_sync_is_evaluated_again(bench):
    bench.start()
    bench.feed(0, 1100, leak, seq=0)
    bench.live = False
    bench.feed(1100, 1150, leak, seq=1)
    bench.live = True
    bench.feed(1150, 1300, leak, seq=2)
    bench.worker.evaluate()
    assert [alert.rule for alert in bench.alerts()] == ["oom_forecast"]


@pytest.mark.parametrize(
    ("status", "state"),
    [(None, "lost_contact"), ("oom", "oom"), ("completed", "finished"), ("stopped", "finished")],
)
def test_a_new_launch_closes_the_alerts_of_the_older_one(bench, status, state):
    bench.start()
    bench.feed(0, 1200, leak, seq=0)
    bench.worker.evaluate()
    if status:
        bench.finish(status, 1200)
    bench.start(attempt=1)
    bench.worker.evaluate()
    bench.worker.evaluate()
    (alert,) = bench.alerts()
    assert (alert.state, alert.step) == (state, 1199) and bench.notified_states()[-1] == state
    with bench.database.read() as session:
        assert get_run(session, "r").status == "running"


def test_a_run_that_dies_in_the_middle_of_a_turn_is_one_incident(bench, monkeypatch):
    bench.start()
    bench.feed(0, 500, leak, seq=0)
    bench.worker.evaluate()
    evaluate = bench.worker._evaluator._run_rules.turn

    def die_meanwhile(*arguments):
        evaluate(*arguments)
        bench.feed(500, 1450, leak, seq=1)
        bench.finish("oom", 1450)

    bench.now += 10  # so that the rules about whole runs are due, after it has followed them
    monkeypatch.setattr(bench.worker._evaluator._run_rules, "turn", die_meanwhile)
    bench.worker.evaluate()
    monkeypatch.undo()
    bench.worker.evaluate()
    assert [(item.rule, item.state) for item in bench.incidents()] == [("oom_forecast", "oom")]


def test_absence_of_data_resolves_nothing(bench):
    bench.start()
    bench.feed(0, 1200, leak, seq=0)
    bench.worker.evaluate()
    before = bench.alerts()
    for _ in range(60):
        bench.now += 1
        assert not bench.worker.evaluate()
    assert bench.alerts() == before


def test_an_alert_that_could_not_be_written_is_written_at_the_next_turn(
    sqlite_database, make_settings, bench_on
):
    bench = bench_on(
        sqlite_database, make_settings(sqlite_database.url, webhook_url="http://127.0.0.1:9/y")
    )
    bench.start()
    bench.feed(0, 500, leak, seq=0)
    bench.worker.evaluate()
    with sqlite_database.write() as session:
        session.execute(
            text(
                "CREATE TRIGGER full BEFORE INSERT ON alerts BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
            )
        )
    bench.feed(500, 1200, leak, seq=1)
    assert not bench.worker.evaluate()
    assert bench.alerts() == []
    with sqlite_database.write() as session:
        session.execute(text("DROP TRIGGER full"))
    bench.worker.evaluate()
    assert bench.path() == ["pending", "firing"] and count_notifications(bench) == 1


def test_a_new_run_inherits_nothing_from_a_deleted_one(bench):
    bench.start("first")
    bench.feed(0, 1000, leak, seq=0, run_id="first")
    bench.worker.evaluate()
    with bench.database.write() as session:
        delete_run(session, "first")
    bench.start("second")
    bench.feed(0, 1200, leak, seq=0, run_id="second")
    bench.worker.evaluate()
    (alert,) = bench.alerts()
    assert (alert.run_id, alert.state) == ("second", "firing")


def test_a_notification_of_another_run_never_has_the_same_key(bench):
    keys = set()
    for run_id in ("first", "second"):
        bench.start(run_id)
        bench.feed(0, 1200, leak, seq=0, run_id=run_id)
        bench.worker.evaluate()
        with bench.database.write() as session:
            result = set(session.scalars(select(NotificationRow.dedup_key)))
            assert result and not result & keys
            keys |= result
            delete_run(session, run_id)


def test_a_device_whose_limit_is_not_known_is_ignored(bench):
    with bench.database.write() as session:
        start_run(session, RunStart(run_id="r"), bench.now)
    bench.feed(0, 1200, leak, seq=0)
    with bench.database.write() as session:
        stream = session.scalars(select(StreamRow)).one()
        stream.limit_bytes = None
        stream.latest = {}
    assert not bench.worker.evaluate()
    assert bench.alerts() == []
