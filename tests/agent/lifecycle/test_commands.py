"""Requests of people reach the script once, at the end of a step."""

from __future__ import annotations

import pytest

import memagent
from memagent.diagnostics import ErrorGuard
from memagent.lifecycle.commands import MAX_WAITING, ScriptCommands
from memagent.wire.messages import BatchReply, Command, Event


class Sink:
    """What a sampler and an event sink are to the commands."""

    step = 7

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.requested_work = 0

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def request_work(self) -> None:
        self.requested_work += 1

    def states(self) -> list[str]:
        return [event.data["state"] for event in self.events]


@pytest.fixture
def sink() -> Sink:
    return Sink()


def stop(number: object = 1, kind: str = "stop") -> Command:
    return Command(kind=kind, data={"id": number, "by": "ana"})


def test_a_repeated_request_is_taken_once_and_answered_twice(sink):
    taken: list[Command] = []
    commands = ScriptCommands(taken.append, sink, sink, ErrorGuard())
    commands.receive([stop()])
    commands.receive([stop(), stop(2, "checkpoint")])
    assert taken == [] and sink.states() == ["delivered", "delivered"]
    commands.after_step()
    commands.after_step()
    assert [command.kind for command in taken] == ["stop", "checkpoint"]
    assert sink.states() == ["delivered", "delivered", "done", "done"]
    assert sink.events[-1].data == {"id": 2, "command": "checkpoint", "state": "done"}
    assert sink.requested_work == 2


@pytest.mark.parametrize(
    "command",
    [stop(kind="snapshot"), stop(kind="kill"), stop("x"), stop(None), Command(kind="stop")],
)
def test_other_commands_and_requests_without_an_id_are_ignored(sink, command):
    ScriptCommands(print, sink, sink, ErrorGuard()).receive([command])
    assert sink.events == []


def test_a_flood_of_requests_is_bounded(sink):
    ScriptCommands(print, sink, sink, ErrorGuard()).receive(stop(number) for number in range(1_000))
    assert len(sink.events) == MAX_WAITING


def test_an_error_of_the_callback_is_reported_and_stops_nothing(sink):
    def fail(command):
        raise RuntimeError("no room on the disk")

    guard = ErrorGuard()
    commands = ScriptCommands(fail, sink, sink, guard)
    commands.receive([stop()])
    commands.after_step()
    assert sink.states() == ["delivered", "failed"] and guard.errors["on_command"] == 1
    assert sink.events[-1].data["text"] == "RuntimeError: no room on the disk"


def test_a_script_that_ends_in_its_callback_has_carried_it_out(training, recording):
    model, optimizer, step = training

    def obey(command):
        run.finish("stopped")
        raise SystemExit

    run = memagent.attach(model, optimizer, on_command=obey)
    run._pipeline._handle_reply(BatchReply(accepted=0, next_seq=0, commands=[stop()]))
    with pytest.raises(SystemExit):
        step()
    states = [event.data["state"] for event in recording().events if event.kind == "command_reply"]
    assert states == ["delivered", "done"] and recording().finish.status == "stopped"
    assert recording().start.environment["takes_commands"] is True


def test_a_script_without_on_command_says_so(training, recording):
    model, optimizer, step = training
    run = memagent.attach(model, optimizer)
    run._pipeline._handle_reply(BatchReply(accepted=0, next_seq=0, commands=[stop()]))
    step()
    run.finish()
    assert "takes_commands" not in recording().start.environment
    assert not [event for event in recording().events if event.kind == "command_reply"]
