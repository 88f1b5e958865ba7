"""How a run will have ended, and what it says at its death.

1. An error that ends it has last words where it is an out-of-memory: who held the memory, and what was asked for.
2. Where the process leaves without a word (`sys.exit`, a thread that died) the step tells: if another follows, that was not the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memagent.diagnostics.error_guard import ErrorGuard
from memagent.estimator.estimate import Estimate
from memagent.hooks.exit import describe_error, status_of
from memagent.leaks.monitor import LeakMonitor
from memagent.mirror import Mirror
from memagent.oom.recorder import OomRecorder
from memagent.sampling.sampler import Sampler
from memagent.wire.messages import Event, FinalStatus


@dataclass(frozen=True)
class ExitStatus:
    """What may have ended the run after `step`: if another step follows, it did not."""

    step: int
    status: FinalStatus
    error: str | None = None
    last_words: Event | None = None


class ExitTracker:
    """Of one run. `tell` takes the event that holds its last words; `prediction` is the newest there is."""

    def __init__(
        self,
        sampler: Sampler,
        last_words: OomRecorder,
        inquiry: LeakMonitor,
        mirror: Mirror,
        guard: ErrorGuard,
        tell: Callable[[Event], None],
        prediction: Callable[[], Estimate | None],
    ) -> None:
        self._sampler, self._last_words, self._inquiry = sampler, last_words, inquiry
        self._mirror, self._guard, self._tell, self._prediction = mirror, guard, tell, prediction
        self._expected: ExitStatus | None = None

    def note_death(self, error: BaseException) -> None:
        """The run is out of memory and ends: say what can be said."""
        with self._guard.section("the last look"):  # there may be no memory left for it
            self._inquiry.at_the_end()
        with self._guard.section("last words"):
            self._last_words.last_peaks = list(self._inquiry.last_peaks)
            words = self._said_of(error)
            self._tell(words)
            self._last_words.report(words, self._prediction(), self._inquiry.roots)
            self._mirror.warn(
                f"out of memory\n{describe_error(error)}", step=self._sampler.step, is_critical=True
            )

    def expect(self, error: BaseException, *, is_of_trainer: bool) -> None:
        """`sys.exit` was called, or another thread died: of that one only an out-of-memory is ours, or if it was the one that trains."""
        status = status_of(error)
        if status != "completed" and (
            isinstance(error, SystemExit) or status == "oom" or is_of_trainer
        ):
            last_words = self._said_of(error) if status == "oom" else None
            self._expected = ExitStatus(
                self._sampler.step, status, describe_error(error), last_words
            )

    def at_exit(self) -> ExitStatus:
        """What the end of the process means for the run; its last words are told."""
        found = self._expected
        if found is None or found.step != self._sampler.step:
            return ExitStatus(self._sampler.step, "completed")
        if found.last_words is not None:
            self._tell(found.last_words)
        return found

    def _said_of(self, error: BaseException) -> Event:
        return self._last_words.say(error, self._inquiry.suspects, self._inquiry.search)
