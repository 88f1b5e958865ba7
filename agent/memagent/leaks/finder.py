"""`Finder`: the shell around a diagnosis. It looks only when asked to, at step boundaries, on the thread that trains, and seldom.

A diagnosis takes a census now, another `window` steps later but one, and compares at the next. Each costs tens of milliseconds: the budget
lets a next one begin only when all of them together stay below a thousandth of the time that the run has lasted. The first may begin at
once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from memagent.leaks import census, graphs
from memagent.leaks.census import Census
from memagent.leaks.diagnose import diagnose
from memagent.leaks.suspect import Diagnosis, Suspect

WINDOW = 20
_T = TypeVar("_T")


@dataclass
class Budget:
    """Seconds spent on diagnoses, and whether another may begin `elapsed_s` after the first step."""

    share: float = 0.001
    spent_s: float = 0.0

    def allows(self, elapsed_s: float) -> bool:
        return self.spent_s <= self.share * elapsed_s

    def spend(self, seconds: float) -> None:
        self.spent_s += seconds


@dataclass
class Finder:
    """Names what holds growing memory. `request()` from any thread; `after_step` on the training thread at each step's end.

    used_bytes: what the device (or the host) has in use now, None if unknown. clock: seconds that only grow."""

    used_bytes: Callable[[], int | None] = lambda: None
    window: int = WINDOW
    clock: Callable[[], float] = time.monotonic
    budget: Budget = field(default_factory=Budget)
    diagnosis: Diagnosis | None = None
    """The newest one; without suspects where none was found."""

    def __post_init__(self) -> None:
        self._began_at = self.clock()
        self._wanted = False
        self._pause_s = 0.0
        self._first: Census | None = None
        self._before: Census | None = None
        self._used: int | None = None

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Those of the newest diagnosis."""
        return self.diagnosis.suspects if self.diagnosis else ()

    @property
    def is_busy(self) -> bool:
        """Whether a diagnosis is wanted or under way."""
        return self._wanted or self._first is not None

    def request(self) -> None:
        """Growth is suspected: find its holder, when the budget allows."""
        self._wanted = True

    def after_step(self, step: int) -> Diagnosis | None:
        """To be called when a step has ended. Returns the diagnosis in the step that completes one."""
        if self._first is None:
            if self._wanted and self.budget.allows(self.clock() - self._began_at):
                self._begin(step)
            return None
        if self._before is None and step >= self._first.step + self.window - 1:
            self._before = self._timed(lambda: census.take(step, census.live_tensors()))
            return None
        return self._end(step) if self._before is not None and step > self._before.step else None

    def conclude(self, step: int) -> Diagnosis | None:
        """The run ends here: judge by what has been seen, if that is enough. For last words."""
        if self._first is None or step < self._first.step + 3:
            return None
        if self._before is None:
            self._before = self._timed(lambda: census.take(step - 1, census.live_tensors()))
        return self._end(step)

    def _begin(self, step: int) -> None:
        self._wanted, self._pause_s = False, 0.0
        self._used = self.used_bytes()
        self._first = self._timed(lambda: _full_census(step))

    def _end(self, step: int) -> Diagnosis:
        first, before = self._first, self._before
        self._first = self._before = None
        if first is None or before is None:
            raise RuntimeError("a diagnosis ends that has not begun")
        rate = self._rate(max(1, step - first.step))
        suspects = self._timed(lambda: diagnose(first, before, step, measured_bytes_per_step=rate))
        self.diagnosis = Diagnosis(first.step, step, tuple(suspects), round(self._pause_s, 6))
        return self.diagnosis

    def _rate(self, steps: int) -> int | None:
        now = self.used_bytes()
        return None if now is None or self._used is None else max(0, now - self._used) // steps

    def _timed(self, call: Callable[[], _T]) -> _T:
        began = time.perf_counter()
        try:
            return call()
        finally:
            spent = time.perf_counter() - began
            self._pause_s += spent
            self.budget.spend(spent)


def _full_census(step: int) -> Census:
    tensors = census.live_tensors()
    return census.take(step, tensors, graphs.count(tensors))


def find(train_step: Callable[[], object], steps: int = WINDOW) -> Diagnosis:
    """Run `train_step` some times and say which variable holds the memory that grows meanwhile: for a REPL, a notebook or a test.

        diagnosis = memagent.leaks.find(lambda: train_step(model, batch))
        for suspect in diagnosis.suspects: print(suspect.file, suspect.line, suspect.holder, suspect.fix)

    steps: between the two looks; more for what grows seldom. What `train_step` raises is raised."""
    finder = Finder(window=steps)
    finder.request()
    for step in range(1, steps + 4):
        train_step()
        if (diagnosis := finder.after_step(step)) is not None:
            return diagnosis
    raise RuntimeError("the diagnosis did not end")
