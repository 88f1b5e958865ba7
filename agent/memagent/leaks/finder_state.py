"""State of the leak finder: what it was given, how far it is, and what it knows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from memagent.forecast.types import Growing
from memagent.leaks import MIN_STEPS, WINDOW_STEPS, confirmation, cyclic_garbage, syntax
from memagent.leaks.census import TensorGroup
from memagent.leaks.confirmation import (
    CONFIRMING_STEPS,
    GrowthCheck,
    HostGrowthCheck,
    Reading,
    has_grown,
)
from memagent.leaks.detectors.allocator_history import AllocatorHistoryDetector
from memagent.leaks.detectors.base import Work
from memagent.leaks.free_memory import FreeMemory
from memagent.leaks.limited_growth import SourceEvidence
from memagent.leaks.suspect import Diagnosis
from memagent.leaks.time_budgets import Budget, TimeBudget
from memagent.leaks.trace_pause import untraced
from memagent.leaks.trace_schedule import MAX_SLOW_DOWN_S, StepTimes, TraceSchedule
from memagent.leaks.window import ReadingWindow, WindowRequest
from memagent.wire.messages import Suspect

MAX_SLICE_S = 0.02
"""Processor time per step."""
ALLOWANCE_S = 0.5
"""Processor time that diagnoses may take in the shortest run."""
_MAX_REST_SHARE = 0.25
"""Share of what all diagnoses may still take by which one trace may slow the script down."""
_MIN_WINDOW_SHARE = 0.75
"""Share of a window from which a result counts in full when the run ends well."""
State = Literal["idle", "requested", "counting", "searching", "done"]


@dataclass
class FinderState:
    """Settings, progress and results of a finder.

    used_bytes: returns memory in use on the device or host now, None if unknown. host_bytes: the
    same of the host. free_memory: returns what is free for containers to fill. clock: returns
    monotonic seconds. thread_clock: returns processor time of the calling thread.
    """

    used_bytes: Callable[[], int | None] = lambda: None
    host_bytes: Callable[[], int | None] = lambda: None
    free_memory: Callable[[], FreeMemory] = FreeMemory
    window: int = WINDOW_STEPS
    confirming_window: int = CONFIRMING_STEPS
    max_slice_s: float = MAX_SLICE_S
    clock: Callable[[], float] = time.monotonic
    thread_clock: Callable[[], float] = time.thread_time
    started_at: float | None = None
    """Time by the clock at which the run began, None if it begins now."""
    budget: Budget = field(default_factory=lambda: Budget(allowance_s=ALLOWANCE_S))
    diagnosis: Diagnosis | None = None
    """The newest diagnosis. It has no suspects if none were found."""
    history: AllocatorHistoryDetector | None = None
    """The newest record of the CUDA allocator, if requested."""

    def __post_init__(self) -> None:
        self._started_at = self.clock() if self.started_at is None else self.started_at
        self._requested: WindowRequest | None = None
        self._advance_s = 0.0
        """How far the diagnosis that is requested or running may be ahead of the budget."""
        self._window = ReadingWindow(WindowRequest(self.window))
        self._check = GrowthCheck()
        self._host_check = HostGrowthCheck((), 0, None)
        self._native_rate = 0
        """Bytes per step of native growth that was measured, 0 once there are suspects."""
        self._native_since: Reading = (0, None)
        self._step_times = StepTimes()
        self._extra_s = 0.0
        """Cost of the newest window besides its readings and its search."""
        self._search: Work[SourceEvidence] | None = None
        self._max_search_s = math.inf
        self._time_budget = self._new_time_budget()
        self._readings_s = 0.0
        """Processor time of those before the newest search."""
        self._unconfirmed: Diagnosis | None = None
        self._is_filling = False
        """Most growth of the newest diagnosis was below its bounds."""
        self._keyed: frozenset[tuple[str, int | None]] = frozenset()
        """Lines of the newest suspects that fill a table by key."""
        self._slowed: dict[tuple[str, int | None], float] = {}
        """Bytes per step of tables that were withdrawn, by line."""
        self._expected: dict[tuple[str, int | None], dict[TensorGroup, float]] = {}
        """Tensors of what was withdrawn, if it had gone on growing up to then, by line."""
        self._growth: Growing = "unknown"
        """Kind of the growth of the newest suspects, by the source (`limited_growth`)."""

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Return the suspects of the newest diagnosis."""
        return self.diagnosis.suspects if self.diagnosis else ()

    @property
    def growing(self) -> Growing:
        """Return what keeps the growing memory, as far as is known.

        A buffer if it's below a bound that memory suffices for. If the source has a limit, what
        `limited_growth` says of it. Of a buffer only until a longer window shows that it goes on.
        The next diagnosis doesn't change what the last one found before it ends.
        """
        if self._unconfirmed is not None:
            return self._growth
        if self._is_filling and not self.suspects:
            return "buffer"
        is_known = self.suspects and self._growth != "buffer"
        return self._growth if is_known else "unknown"

    def rest_bytes(self, *, on_host: bool) -> int | None:
        """Return the bytes until a growing buffer is full, None if that's unknown."""
        is_known = self.growing == "buffer" and self._unconfirmed is None
        return self._window.bounds.rest_bytes(on_host=on_host) if is_known else None

    def native_rate(self, step: int) -> int | None:
        """Return the bytes per step that neither tensors nor Python's objects explain.

        None with suspects, or if memory has grown by much less up to this step.
        """
        least = confirmation.MIN_HOST_SHARE * self._native_rate
        goes_on = has_grown(self._native_since, (step, self.host_bytes()), least)
        return self._native_rate if self._native_rate and goes_on else None

    @property
    def is_busy(self) -> bool:
        """Return True if a diagnosis is requested or running."""
        return self._requested is not None or self.is_running

    @property
    def state(self) -> State:
        """Return what the finder does now."""
        if self._search is not None:
            return "searching"
        if self.is_running:
            return "counting"
        if self._requested is not None:
            return "requested"
        return "done" if self.diagnosis is not None else "idle"

    @property
    def is_running(self) -> bool:
        """Return True if a diagnosis is running."""
        return self._window.is_active

    @property
    def observed_steps(self) -> int:
        """Return the steps that the running diagnosis has lasted, 0 if none is running."""
        return self._window.observed_steps

    @property
    def first_step(self) -> int:
        """Return the step after which the running or newest window begins."""
        return self._window.first_step

    @property
    def end_step(self) -> int:
        """Return the step with which that window ends, if the run goes on."""
        return self._window.first_step + self._window.request.steps

    def _schedule(self, steps: int) -> TraceSchedule:
        """Return the schedule of a trace: it may take a part of what is left of the budget."""
        rest_s = _MAX_REST_SHARE * self.budget.rest_s(self._elapsed_s())
        return TraceSchedule(self._step_times.median_s, steps, max(MAX_SLOW_DOWN_S, rest_s))

    @property
    def waits(self) -> bool:
        """Return True if training goes on between slices."""
        return self.max_slice_s < math.inf

    def _new_time_budget(self) -> TimeBudget:
        return TimeBudget(thread_clock=self.thread_clock)

    @property
    def _is_window_short(self) -> bool:
        """Return True if too little of the window is over for what it shows to be a leak."""
        return self.observed_steps < max(MIN_STEPS, _MIN_WINDOW_SHARE * self._window.request.steps)

    def _elapsed_s(self) -> float:
        return self.clock() - self._started_at

    def close(self) -> None:
        """Drop the requested diagnosis or the running one."""
        search, self._search = self._search, None
        was_active = self._window.is_active
        self._check.close()
        self._requested = None
        self._unconfirmed = None
        if search is not None:
            search.close()
        if was_active:
            self._extra_s = self._window.extra_s
            self.budget.spend(self._extra_s)
        self._window.close()
        if was_active:
            syntax.clear_cache()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the processor time of a slice. If it raises, switch everything off."""
        budget = self._time_budget
        earlier_s = budget.used_s()
        budget.begin_slice(self.max_slice_s)
        try:
            with untraced(), cyclic_garbage.uncollected():
                yield
        except BaseException:
            self.close()
            raise
        finally:
            budget.end_slice()
            self.budget.spend(budget.used_s() - earlier_s)
