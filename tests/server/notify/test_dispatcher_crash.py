"""SIGKILL of a delivering process before every line: nothing is lost, order is kept.

1. Two messages wait: an alert's warning and its end. A process delivers them and is killed before
   line k of the code that leases, sends and marks, for every k.
2. Another process delivers the rest after the leases have expired.
3. Each message arrives at least once, the end never before the warning. A repeat has the same key
   and is marked as one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import func, select

from memagent.wire.messages import RunStart
from memagent_server.notify.dispatcher import LEASE_S
from memagent_server.store.alerts import add_transition
from memagent_server.store.models import AlertRow, IncidentRow, NotificationRow, TransitionRow
from memagent_server.store.runs import start_run

MAX_LINES = 1000
KILLED = -9


@pytest.fixture
def run_and_kill(database, receiver):
    """run_and_kill(verb, kill_at, now): run a step in a child process, return its exit status."""
    process = subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("crashing_dispatcher.py")),
            database.url,
            receiver.url,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run_and_kill(verb: str, kill_at: int, now: float) -> int:
        process.stdin.write(f"{verb} {kill_at} {now}\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    yield run_and_kill
    process.communicate(timeout=30)


@pytest.fixture
def two_messages(database, queue_alert):
    """two_messages(): queue the warning and the end of a new alert, return their keys."""
    with database.write() as session:
        start_run(session, RunStart(run_id="r"), 1.0)

    def two_messages() -> list[str]:
        alert_id = queue_alert()
        with database.read() as session:
            keys = select(NotificationRow.dedup_key).where(NotificationRow.alert_id == alert_id)
            return list(session.scalars(keys.order_by(NotificationRow.id)))

    return two_messages


@pytest.mark.long
def test_it_loses_nothing_wherever_it_is_killed(database, receiver, run_and_kill, two_messages):
    now, twice, before = 1000.0, 0, 0
    for kill_at in range(1, MAX_LINES):
        keys = two_messages()
        receiver.requests.clear()
        status = run_and_kill("turn", kill_at, now)
        assert status in (0, KILLED)
        before += not receiver.requests
        now += LEASE_S + 1
        assert run_and_kill("deliver", 0, now) == 0
        came = received(receiver)
        assert list(dict.fromkeys(key for key, _ in came)) == keys, f"killed before line {kill_at}"
        for number, (key, is_repeat) in enumerate(came):
            assert is_repeat or key not in [earlier for earlier, _ in came[:number]]
        twice += len(came) > 2
        if status == 0:
            break
    with database.read() as session:
        assert set(session.scalars(select(NotificationRow.state))) == {"sent"}
    assert status == 0, "it never reached the end"
    assert before > 20 and twice > 5, "the kills did not hit the intended lines"


@pytest.mark.long
def test_a_killed_edit_loses_no_message(database, receiver, run_and_kill, two_messages):
    """The warning was sent and acknowledged. The edit is killed before line k; then the end follows."""
    now, edited = 1000.0, 0
    for kill_at in range(1, MAX_LINES):
        two_messages()
        with database.write() as session:
            alert = session.scalars(select(AlertRow).order_by(AlertRow.id.desc()).limit(1)).one()
            incident = IncidentRow(
                run_id="r",
                rule="oom_forecast",
                state="firing",
                severity="warning",
                opened_at=1.0,
                updated_at=1.0,
            )
            session.add(incident)
            session.flush()
            alert.incident_id = incident.id
            warning, end = session.scalars(
                select(NotificationRow)
                .where(NotificationRow.alert_id == alert.id)
                .order_by(NotificationRow.id)
            )
            warning.incident_id = end.incident_id = incident.id
            end.next_attempt_at = now + LEASE_S
        assert run_and_kill("turn", 0, now) == 0
        with database.write() as session:
            session.get_one(IncidentRow, incident.id).acked_at = 3.0
            session.delete(session.get_one(NotificationRow, end.id))  # the end is not there yet
        receiver.requests.clear()
        status = run_and_kill("turn", kill_at, now)
        edited += bool(receiver.requests)
        with database.write() as session:
            alert, incident = (
                session.get_one(AlertRow, alert.id),
                session.get_one(IncidentRow, incident.id),
            )
            add_transition(
                session,
                alert,
                from_state="firing",
                to_state="oom",
                reason="",
                now=now,
                channels=["test"],
            )
            alert.state = incident.state = "oom"
        now += LEASE_S + 1
        assert run_and_kill("deliver", 0, now) == 0
        assert receiver.payload()["to_state"] == "oom", f"killed before line {kill_at}"
        if status == 0:
            break
    assert status == 0 and kill_at > 20 and edited > 5


@pytest.mark.long
def test_it_opens_an_alert_with_its_message_or_not_at_all(database, run_and_kill, two_messages):
    counts = set()
    for kill_at in range(1, MAX_LINES):
        status = run_and_kill("open", kill_at, 1000.0)
        with database.read() as session:
            transitions, notifications = (
                session.scalar(select(func.count(of.id))) for of in (TransitionRow, NotificationRow)
            )
        assert transitions == notifications
        counts.add(notifications)
        if status == 0:
            break
    assert status == 0 and 0 in counts and kill_at > 10


def received(receiver) -> list[tuple[str, bool]]:
    return [
        (headers["Idempotency-Key"], receiver.payload(number)["is_repeat"])
        for number, (_, headers, _) in enumerate(receiver.requests)
    ]
