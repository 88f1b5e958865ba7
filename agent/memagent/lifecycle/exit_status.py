"""Final status of a run, and the report of an out-of-memory error.

1. If an out-of-memory error ends the run, its report is recorded first: who held the memory, and
   how much was requested.
2. If the process leaves without an exception that hooks can see (`sys.exit`, a thread that died),
   steps decide: another step means that it was not the end.
3. A signal that ends the process stops the run. After one that a handler of the script's has got,
   the run was stopped if it ends within STOP_WINDOW_S, short of its planned steps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from memagent.diagnostics import ErrorGuard
from memagent.hooks.dispatcher import Remove
from memagent.hooks.exit import describe_error, install_exit_hooks, status_of
from memagent.hooks.instrumentation import ModelInstrumentation
from memagent.hooks.termination import Termination
from memagent.leaks.monitor import LeakMonitor
from memagent.oom.recorder import OomRecorder
from memagent.sampling.bus import EventSink
from memagent.sampling.sampler import Sampler
from memagent.wire.messages import Event, FinalStatus

if TYPE_CHECKING:
    from memagent.mirror.mirror import Mirror


STOP_WINDOW_S = 600.0
"""Time that a script has after a signal to save and leave, or to finish an epoch."""


class ExitStatus(msgspec.Struct, frozen=True):
    """A possible end of the run after `step`, with its `oom` event if it has one."""

    step: int
    status: FinalStatus
    error: str | None = None
    oom_event: Event | None = None


class ExitTracker:
    """Records how one run ends."""

    def __init__(
        self,
        sampler: Sampler,
        instrumentation: ModelInstrumentation,
        oom: OomRecorder,
        leaks: LeakMonitor,
        mirror: Mirror | None,
        events: EventSink,
        guard: ErrorGuard,
        total_steps: int | None = None,
    ) -> None:
        self._total_steps = total_steps
        self._stop: tuple[float, str] | None = None
        """Time of a signal that a handler of the script's got (monotonic clock), and its cause."""
        self._sampler = sampler
        self._instrumentation = instrumentation
        self._oom = oom
        self._leaks = leaks
        self._mirror = mirror
        self._events = events
        self._guard = guard
        self._possible_exit: ExitStatus | None = None
        self.remove_hooks: Remove = lambda: None

    def install_hooks(
        self, fail_with: Callable[[BaseException], None], finish: Callable[..., None]
    ) -> None:
        """End the run with an uncaught error by `fail_with`, at interpreter exit by `finish`."""

        def on_possible_exit(error: BaseException, thread: int) -> None:
            with self._guard.section("exit"):
                is_training_thread = thread == self._instrumentation.training_thread
                self.note_possible_exit(error, is_training_thread=is_training_thread)

        def on_exit() -> None:
            exit_status = self.at_exit()
            finish(exit_status.status, error=exit_status.error)

        def on_termination(termination: Termination) -> None:
            with self._guard.section("a signal"):
                text = describe_termination(termination)
                self._stop = (time.monotonic(), text)
                if not termination.is_handled:
                    finish("stopped", error=text)

        self.remove_hooks = install_exit_hooks(
            fail_with, on_exit, on_possible_exit=on_possible_exit, on_termination=on_termination
        )

    def outcome(self, status: FinalStatus, error: str | None) -> tuple[FinalStatus, str | None]:
        """Return how the run ended, given what the script says: stopped, if after a signal."""
        is_whole = self._total_steps is not None and self._sampler.step >= self._total_steps
        if self._stop is None or status not in ("completed", "failed") or is_whole:
            return status, error
        stopped_at, text = self._stop
        is_recent = time.monotonic() - stopped_at <= STOP_WINDOW_S
        return ("stopped", text) if is_recent else (status, error)

    def record_oom(self, error: BaseException) -> None:
        """Record and print the report of the out-of-memory error that ends the run."""
        self._oom.release_ballast()
        with self._guard.section("the last leak diagnosis"):
            self._leaks.at_the_end()
        with self._guard.section("the out-of-memory report"):
            event = self._oom_event(error)
            self._events.emit(event)
            self._oom.print_report(event, self._leaks.roots)
            if self._mirror is not None:
                message = f"out of memory\n{describe_error(error)}"
                self._mirror.warn(message, step=self._sampler.step, is_critical=True)

    def note_possible_exit(self, error: BaseException, *, is_training_thread: bool) -> None:
        """Remember that `sys.exit` was called or another thread died.

        A thread's death counts if it ran out of memory, or if it was the one that trains.
        """
        status = status_of(error)
        if status == "completed":
            return
        if isinstance(error, SystemExit) or status == "oom" or is_training_thread:
            event = self._oom_event(error) if status == "oom" else None
            self._possible_exit = ExitStatus(
                self._sampler.step, status, describe_error(error), event
            )

    def at_exit(self) -> ExitStatus:
        """Return how the run ended, now that the process does; report it if out of memory."""
        exit_status = self._possible_exit
        # a step since then: the script went on after its sys.exit or its thread's death
        if exit_status is None or exit_status.step != self._sampler.step:
            return ExitStatus(self._sampler.step, "completed")
        if exit_status.oom_event is not None:
            self._events.emit(exit_status.oom_event)
            with self._guard.section("the out-of-memory report"):
                self._oom.print_report(exit_status.oom_event, self._leaks.roots)
        return exit_status

    def _oom_event(self, error: BaseException) -> Event:
        leaks = self._leaks
        return self._oom.build_event(error, leaks.suspects, leaks.search, list(leaks.last_peaks))


def describe_termination(termination: Termination) -> str:
    """Return one sentence: the signal, who sent it, and the line that it came in."""
    from memagent.leaks.user_code import is_script

    cause = "the script sent it to itself"
    if not termination.is_own:
        from memagent.record.stop_cause import stop_cause  # most runs aren't stopped

        cause = stop_cause(termination.name, os.environ, time.time())
    lines = (
        f", in {Path(file).name}:{line}" for file, line in termination.frames if is_script(file)
    )
    return f"{termination.name}{next(lines, '')}: {cause}"
