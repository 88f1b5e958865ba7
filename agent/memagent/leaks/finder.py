"""`Finder`: the shell around a diagnosis. It looks only when asked to, at step boundaries, on the thread that trains, and seldom.

A diagnosis spans `window` steps: it looks at their beginning, in the middle, a step before the end and at the end, tens of milliseconds
each. The budget lets a next one begin only when all of them together stay below a thousandth of the time that the run has lasted; the
first may begin at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from memagent.leaks import source_lines
from memagent.leaks.detectors.allocator_history import AllocatorHistoryDetector
from memagent.leaks.detectors.base import Detector, TimeBudget
from memagent.leaks.detectors.host_memory import HostMemoryDetector
from memagent.leaks.detectors.loader_workers import LoaderWorkerDetector
from memagent.leaks.detectors.tensors import TensorDetector
from memagent.leaks.diagnosis import LONGEST_S
from memagent.leaks.suspect import Diagnosis
from memagent.wire.messages import Suspect

WINDOW = 20
LONGEST_PAUSE_S = 0.9
"""Of a whole diagnosis, on the wall. Its smallest piece, a look at all objects, may begin just before."""
LEAST_STEPS = 4
MOST_STACKS = 2_000
"""That a diagnosis keeps."""


@dataclass
class Budget:
    """Seconds spent on diagnoses, and whether another may begin `elapsed_s` after the run did."""

    share: float = 0.001
    spent_s: float = 0.0

    def allows(self, elapsed_s: float) -> bool:
        return self.spent_s <= self.share * elapsed_s

    def spend(self, seconds: float) -> None:
        self.spent_s += seconds


@dataclass
class Finder:
    """Names what holds growing memory. `request` from any thread; `after_step` on the training thread at each step's end.

    used_bytes: what the device (or the host) has in use now, None if unknown. clock: seconds that only grow."""

    used_bytes: Callable[[], int | None] = lambda: None
    window: int = WINDOW
    longest_pause_s: float = LONGEST_PAUSE_S
    clock: Callable[[], float] = time.monotonic
    budget: Budget = field(default_factory=Budget)
    diagnosis: Diagnosis | None = None
    """The newest one; without suspects where none was found."""
    history: AllocatorHistoryDetector | None = None
    """The newest record of the CUDA allocator, where one was asked for: its snapshot, and what `flame` draws."""

    def __post_init__(self) -> None:
        self._began_at = self.clock()
        self._wanted: tuple[Detector, ...] = ()
        self._is_urgent = False
        self._open: tuple[Detector, ...] = ()
        self._first = self._last_seen = 0
        self._is_half = self._is_last = False
        self._pause_s = 0.0

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Those of the newest diagnosis."""
        return self.diagnosis.suspects if self.diagnosis else ()

    @property
    def is_busy(self) -> bool:
        """Whether a diagnosis is wanted or under way."""
        return bool(self._wanted or self._open)

    @property
    def steps_seen(self) -> int:
        """By the diagnosis under way; 0 where none is."""
        return self._last_seen - self._first if self._open else 0

    @property
    def is_looking(self) -> bool:
        """Whether one is under way."""
        return bool(self._open)

    def request(
        self, *, history: bool = False, host: bool = False, beyond_budget: bool = False
    ) -> None:
        """Growth is suspected: find its holder, as soon as the budget allows, or `beyond_budget` at once.

        history: also record the CUDA allocator meanwhile. host: also trace Python's own allocations, which slows small steps two to five
        times while it lasts. One that is wanted already is replaced; one under way is not disturbed."""
        windows: list[Detector] = [TensorDetector(self.used_bytes), LoaderWorkerDetector()]
        if history:
            self.history = AllocatorHistoryDetector()
            windows.append(self.history)
        self._is_urgent = beyond_budget
        self._wanted = (*windows, HostMemoryDetector()) if host else tuple(windows)

    def after_step(self, step: int) -> Diagnosis | None:
        """To be called when a step has ended. Returns the diagnosis in the step that completes one."""
        if not self._open:
            if self._wanted and (
                self._is_urgent or self.budget.allows(self.clock() - self._began_at)
            ):
                self._begin(step)
            return None
        age = step - self._first
        self._last_seen = step
        if self._is_last or self._pause_s > self.longest_pause_s:
            return self._end(step)
        if not self._is_half and 2 * age >= self.window:
            self._is_half = True
            self._timed(lambda: _each(self._open, "middle", step))
        if age >= self.window - 1:
            self._is_last = True
            self._timed(lambda: _each(self._open, "before", step))
        return None

    def conclude(self) -> Diagnosis | None:
        """The run ends here: judge by what has been seen, if that is enough. For last words."""
        if not self._open or self._last_seen - self._first < LEAST_STEPS:
            self.close()
            return None
        self.longest_pause_s = math.inf  # nobody waits to go on
        if not self._is_last:
            self._timed(lambda: _each(self._open, "before", self._last_seen))
        return self._end(self._last_seen + 1)

    def close(self) -> None:
        """Give up what is wanted or under way."""
        opened, self._open, self._wanted = self._open, (), ()
        for window in opened:
            window.close()
        if opened:
            source_lines.forget()

    def _begin(self, step: int) -> None:
        self._open, self._wanted = self._wanted, ()
        self._first = self._last_seen = step
        self._is_half = self._is_last = False
        self._pause_s = 0.0
        self._timed(lambda: _each(self._open, "begin", step))

    def _end(self, step: int) -> Diagnosis:
        suspects: list[Suspect] = []
        deadline = TimeBudget.after(cpu_s=LONGEST_S, wall_s=self.longest_pause_s - self._pause_s)
        windows = self._open[
            ::-1
        ]  # what traces ends first: it slows the others, and would see what they do
        self._timed(
            lambda: suspects.extend(
                found for window in windows for found in window.end(step, deadline)
            )
        )
        recorded = next((window for window in self._open if window.grown), Detector())
        growth = next(
            (window.growth_bytes_per_step for window in self._open if window.growth_bytes_per_step),
            None,
        )
        self._timed(self.close)
        ranked = sorted(
            suspects, key=lambda suspect: -(suspect.bytes_per_step or 0) * suspect.confidence
        )
        pause_s = round(self._pause_s, 6)
        self.diagnosis = Diagnosis(
            self._first,
            step,
            tuple(ranked),
            pause_s,
            recorded.method,
            tuple(recorded.grown[:MOST_STACKS]),
            growth,
            deadline.was_hit,
        )
        return self.diagnosis

    def _timed(self, call: Callable[[], None]) -> None:
        """Whatever goes wrong, nothing stays switched on."""
        began = time.perf_counter()
        try:
            call()
        except BaseException:
            self.close()
            raise
        finally:
            spent = time.perf_counter() - began
            self._pause_s += spent
            self.budget.spend(spent)


def _each(windows: Sequence[Detector], moment: str, step: int) -> None:
    for window in windows:
        getattr(window, moment)(step)


def find(
    train_step: Callable[[], object],
    steps: int = WINDOW,
    *,
    history: bool = False,
    host: bool = False,
) -> Diagnosis:
    """Run `train_step` some times and say which variable holds the memory that grows meanwhile: for a REPL, a notebook or a test.

        diagnosis = memagent.leaks.find(lambda: train_step(model, batch))
        for suspect in diagnosis.suspects: print(suspect.file, suspect.line, suspect.holder, suspect.fix)

    steps: between the two looks; more for what grows seldom. What `train_step` raises is raised. Raises ValueError for too few steps."""
    if steps < LEAST_STEPS:
        raise ValueError(f"{steps} steps are too few to see growth: give at least {LEAST_STEPS}")
    finder = Finder(window=steps, longest_pause_s=math.inf)  # somebody has asked, and waits
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
