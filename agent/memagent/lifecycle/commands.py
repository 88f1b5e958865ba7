"""Requests of people to the script, such as to stop: from the server's replies to `on_command`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from memagent.diagnostics import ErrorGuard
from memagent.sampling.bus import EventSink
from memagent.sampling.sampler import Sampler
from memagent.wire.messages import COMMAND_REPLY, SCRIPT_COMMANDS, Command, Event

MAX_WAITING = 16
"""Requests that may wait for the end of a step; a server that sends more is refused them."""


class ScriptCommands:
    """The requests to one rank's script.

    1. A reply repeats a request until the agent has answered it, so each is taken once, by its id.
    2. The script's callback runs on the training thread, at the end of the step. Nothing is
       killed: the script decides what a request means.
    3. Events report that a request is delivered, and then that it's done or failed.
    """

    def __init__(
        self,
        on_command: Callable[[Command], object],
        sampler: Sampler,
        events: EventSink,
        guard: ErrorGuard,
    ) -> None:
        self._on_command = on_command
        self._sampler = sampler
        self._events = events
        self._guard = guard
        self._known_ids: set[int] = set()
        self._waiting: deque[Command] = deque()
        self._running: Command | None = None

    def receive(self, commands: Iterable[Command]) -> None:
        """Take the requests of a reply, on the sender's thread."""
        for command in commands:
            request_id = command.data.get("id")
            if command.kind not in SCRIPT_COMMANDS or not isinstance(request_id, int):
                continue
            if request_id in self._known_ids or len(self._waiting) >= MAX_WAITING:
                continue
            self._known_ids.add(request_id)
            self._waiting.append(command)
            self._report(command, "delivered")
            self._sampler.request_work()

    def after_step(self) -> None:
        """Pass waiting requests to the script, on the training thread."""
        while self._waiting:
            command = self._running = self._waiting.popleft()
            with self._guard.section("on_command"):
                try:
                    self._on_command(command)
                except Exception as error:
                    self._end("failed", f"{type(error).__name__}: {error}")
                    raise
                finally:
                    # also if the script ends itself in its callback, by SystemExit
                    self._end("done")

    def close(self) -> None:
        """Report the request that the script is carrying out by ending its run."""
        self._end("done")

    def _end(self, state: str, text: str = "") -> None:
        command, self._running = self._running, None
        if command is not None:
            self._report(command, state, text)

    def _report(self, command: Command, state: str, text: str = "") -> None:
        data: dict[str, Any] = {"id": command.data["id"], "command": command.kind, "state": state}
        if text:
            data["text"] = text[:500]
        self._events.emit(
            Event(kind=COMMAND_REPLY, step=self._sampler.step, time_s=time.time(), data=data)
        )
