"""Requests to scripts on SQLite and PostgreSQL: repeated until they're answered, and never forged."""

from __future__ import annotations

import pytest

from memagent.wire.messages import Batch, Event, Finish, RunStart
from memagent_server.store.errors import ConflictError
from memagent_server.store.events import (
    add_command,
    list_commands,
    list_events,
    pending_commands,
    runs_with_pending_events,
)
from memagent_server.store.runs import finish_run, lock_run, start_run
from memagent_server.store.samples import add_batch


class Script:
    """A running script that takes commands."""

    def __init__(self, database, **environment) -> None:
        self.database = database
        self.seq = 0
        message = RunStart(run_id="r", environment={"takes_commands": True, **environment})
        with database.write() as session:
            start_run(session, message, 1.0)

    def ask(self, kind: str = "stop", by: str | None = "ana") -> int:
        with self.database.write() as session:
            return add_command(session, lock_run(session, "r"), kind, by=by, now=2.0).id

    def answer(self, *events: dict, kind: str = "command_reply") -> None:
        with self.database.write() as session:
            batch = Batch(seq=self.seq, events=[Event(kind=kind, data=data) for data in events])
            add_batch(session, "r", batch, 3.0)
        self.seq += 1

    def pending(self, attempt: int = 0) -> list[dict]:
        with self.database.read() as session:
            commands = pending_commands(session.connection(), "r", attempt)
            return [command.data for command in commands]

    def states(self) -> list[str]:
        with self.database.read() as session:
            return [command.state for command in list_commands(session, "r")]


@pytest.fixture
def script(database) -> Script:
    return Script(database)


def test_a_request_is_repeated_until_it_is_answered(script):
    number = script.ask()
    assert script.pending() == [{"id": number, "by": "ana"}] and script.states() == ["requested"]
    script.answer({"id": number, "state": "delivered"})
    assert script.pending() == [] and script.states() == ["delivered"]
    script.answer({"id": number, "state": "failed", "text": "RuntimeError: full"})
    with script.database.read() as session:
        (command,) = list_commands(session, "r")
    assert (command.state, command.text, command.by) == ("failed", "RuntimeError: full", "ana")


def test_an_open_request_of_a_kind_is_not_added_again(script):
    assert script.ask() == script.ask(by="bob") != script.ask("checkpoint")
    assert len(script.states()) == 2


def test_it_is_no_alert_of_the_script(script):
    script.ask()
    with script.database.read() as session:
        assert runs_with_pending_events(session) == []


def test_a_new_launch_gets_no_request_of_the_last_one(script):
    first = script.ask()
    with script.database.write() as session:
        message = RunStart(run_id="r", attempt=9, environment={"takes_commands": True})
        start_run(session, message, 3.0)
    assert script.pending(attempt=9) == []
    second = script.ask()
    assert second != first and [item["id"] for item in script.pending(attempt=9)] == [second]


def test_an_ended_run_takes_none(script):
    with script.database.write() as session:
        finish_run(session, "r", Finish(status="completed"), 3.0)
    with pytest.raises(ConflictError, match=r"Run r has ended \(completed\)"):
        script.ask()


def test_a_script_without_on_command_takes_none(database):
    with pytest.raises(ConflictError, match="pass on_command"):
        Script(database, takes_commands=False).ask()


def test_an_agent_cannot_forge_a_request(script):
    script.answer({"command": "stop", "by": "root"}, kind="command")
    assert script.states() == [] and script.pending() == []
    with script.database.read() as session:
        assert [event.kind for event in list_events(session, "r", limit=9).events] == [
            "command_reply"
        ]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"id": "x"},
        {"id": True},
        {"id": 2**63 - 1},
        {"id": -1},
        {"id": [1]},
        {"id": 999, "state": "done"},
    ],
)
def test_a_nonsensical_answer_settles_nothing(script, data):
    script.ask()
    script.answer(data)
    assert script.states() == ["requested"] and len(script.pending()) == 1


def test_an_unknown_state_counts_as_requested(script):
    number = script.ask()
    script.answer({"id": number, "state": {"a": 1}, "text": ["b"]})
    assert script.states() == ["requested"]
