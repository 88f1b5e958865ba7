"""Leak finder: runs a diagnosis on request, at step boundaries of the training thread.

A diagnosis spans `window` steps. It stops training for some tens of milliseconds at the beginning,
in the middle, a step before the end, and at the end. The next one may begin only when all of them
together take less than a thousandth of the run's time so far; the first may begin at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from memagent.leaks import syntax
from memagent.leaks.detectors.allocator_history import AllocatorHistoryDetector
from memagent.leaks.detectors.base import Detector, TimeBudget
from memagent.leaks.detectors.host_memory import HostMemoryDetector
from memagent.leaks.detectors.loader_workers import LoaderWorkerDetector
from memagent.leaks.detectors.tensors import TensorDetector
from memagent.leaks.diagnosis import MAX_CPU_S
from memagent.leaks.suspect import Diagnosis
from memagent.wire.messages import Suspect

WINDOW_STEPS = 20
MAX_PAUSE_S = 0.9
"""Wall time of a whole diagnosis. A pass over all objects may begin just before this ends."""
MIN_STEPS = 4
MAX_STACKS = 2_000
"""Call stacks kept per diagnosis."""


@dataclass
class Budget:
    """Seconds spent on diagnoses, as a share of the run's time."""

    share: float = 0.001
    spent_s: float = 0.0

    def allows(self, elapsed_s: float) -> bool:
        """Return True if a diagnosis may begin `elapsed_s` after the run did."""
        return self.spent_s <= self.share * elapsed_s

    def spend(self, seconds: float) -> None:
        self.spent_s += seconds


@dataclass
class Finder:
    """Finds what holds growing memory.

    Call `request` from any thread, and `after_step` on the training thread at the end of each step.
    used_bytes: returns memory in use on the device or host now, None if unknown. clock: returns
    monotonic seconds.
    """

    used_bytes: Callable[[], int | None] = lambda: None
    window: int = WINDOW_STEPS
    max_pause_s: float = MAX_PAUSE_S
    clock: Callable[[], float] = time.monotonic
    budget: Budget = field(default_factory=Budget)
    diagnosis: Diagnosis | None = None
    """The newest diagnosis. It has no suspects if none were found."""
    history: AllocatorHistoryDetector | None = None
    """The newest record of the CUDA allocator, if requested."""

    def __post_init__(self) -> None:
        self._started_at = self.clock()
        self._requested: tuple[Detector, ...] = ()
        self._is_urgent = False
        self._active: tuple[Detector, ...] = ()
        self._first_step = 0
        self._last_step = 0
        self._is_past_middle = False
        self._is_before_last = False
        self._pause_s = 0.0

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Return the suspects of the newest diagnosis."""
        return self.diagnosis.suspects if self.diagnosis else ()

    @property
    def is_busy(self) -> bool:
        """Return True if a diagnosis is requested or running."""
        return bool(self._requested or self._active)

    @property
    def is_running(self) -> bool:
        """Return True if a diagnosis is running."""
        return bool(self._active)

    @property
    def observed_steps(self) -> int:
        """Return the steps that the running diagnosis has lasted, 0 if none is running."""
        return self._last_step - self._first_step if self._active else 0

    def request(
        self, *, history: bool = False, host: bool = False, beyond_budget: bool = False
    ) -> None:
        """Start a diagnosis as soon as the budget allows, or at once if `beyond_budget`.

        history: also record the CUDA allocator. host: also trace Python's own allocations, which
        makes small steps take two to five times as long. Replaces an earlier request that hasn't
        started; a running diagnosis isn't disturbed.
        """
        detectors: list[Detector] = [TensorDetector(self.used_bytes), LoaderWorkerDetector()]
        if history:
            self.history = AllocatorHistoryDetector()
            detectors.append(self.history)
        if host:
            detectors.append(HostMemoryDetector())
        self._is_urgent = beyond_budget
        self._requested = tuple(detectors)

    def after_step(self, step: int) -> Diagnosis | None:
        """Advance the diagnosis after `step`. Return it in the step that completes it."""
        if not self._active:
            is_allowed = self._is_urgent or self.budget.allows(self.clock() - self._started_at)
            if self._requested and is_allowed:
                self._begin(step)
            return None
        self._last_step = step
        if self._is_before_last or self._pause_s > self.max_pause_s:
            return self._end(step)
        if not self._is_past_middle and 2 * self.observed_steps >= self.window:
            self._is_past_middle = True
            with self._timed():
                for detector in self._active:
                    detector.middle(step)
        if self.observed_steps >= self.window - 1:
            self._is_before_last = True
            with self._timed():
                for detector in self._active:
                    detector.before_last(step)
        return None

    def conclude(self) -> Diagnosis | None:
        """End the running diagnosis now, as the run ends. Return None if it saw too few steps."""
        if self.observed_steps < MIN_STEPS:
            self.close()
            return None
        self.max_pause_s = math.inf  # training won't go on, so it doesn't wait
        step = self._last_step
        if not self._is_before_last:
            with self._timed():
                for detector in self._active:
                    detector.before_last(step)
        return self._end(step + 1)

    def close(self) -> None:
        """Drop the requested diagnosis or the running one."""
        active = self._active
        self._active = ()
        self._requested = ()
        for detector in active:
            detector.close()
        if active:
            syntax.clear_cache()

    def _begin(self, step: int) -> None:
        self._active = self._requested
        self._requested = ()
        self._first_step = self._last_step = step
        self._is_past_middle = False
        self._is_before_last = False
        self._pause_s = 0.0
        with self._timed():
            for detector in self._active:
                detector.begin(step)

    def _end(self, step: int) -> Diagnosis:
        suspects: list[Suspect] = []
        wall_s = self.max_pause_s - self._pause_s
        budget = TimeBudget.after(cpu_s=MAX_CPU_S, wall_s=wall_s)
        with self._timed():
            # Tracing detectors end first: they slow down the others, and would record them.
            for detector in reversed(self._active):
                suspects += detector.end(step, budget)
        detectors = self._active
        recorded = next((detector for detector in detectors if detector.grown), Detector())
        growths = (detector.growth_bytes_per_step for detector in detectors)
        growth = next(filter(None, growths), None)
        with self._timed():
            self.close()
        suspects.sort(key=lambda item: -(item.bytes_per_step or 0) * item.confidence)
        self.diagnosis = Diagnosis(
            self._first_step,
            step,
            tuple(suspects),
            round(self._pause_s, 6),
            recorded.method,
            tuple(recorded.grown[:MAX_STACKS]),
            growth,
            budget.was_hit,
        )
        return self.diagnosis

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the time of a block. If it raises, switch everything off."""
        started = time.perf_counter()
        try:
            yield
        except BaseException:
            self.close()
            raise
        finally:
            pause_s = time.perf_counter() - started
            self._pause_s += pause_s
            self.budget.spend(pause_s)


def find(
    train_step: Callable[[], object],
    steps: int = WINDOW_STEPS,
    *,
    history: bool = False,
    host: bool = False,
) -> Diagnosis:
    """Run `train_step` some times and return what holds the memory that grows meanwhile.

    For a REPL, a notebook or a test:

        diagnosis = memagent.leaks.find(lambda: train_step(model, batch))
        for suspect in diagnosis.suspects:
            print(suspect.file, suspect.line, suspect.holder, suspect.fix)

    steps: length of the window; use more for what grows rarely. history and host: see
    `Finder.request`. Exceptions of `train_step` are raised. Raises ValueError for too few steps.
    """
    if steps < MIN_STEPS:
        raise ValueError(f"Too few steps to see growth ({steps}): use at least {MIN_STEPS}.")
    finder = Finder(window=steps, max_pause_s=math.inf)  # the caller waits for the result
    finder.request(history=history, host=host)
    diagnosis, step = None, 0
    try:
        while diagnosis is None:
            train_step()
            step += 1
            diagnosis = finder.after_step(step)
    finally:
        finder.close()
    return diagnosis
