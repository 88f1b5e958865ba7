"""Leak finder: runs a diagnosis on request, at step boundaries of the training thread.

1. *Counting* spans a window of steps: a census at its beginning, one a step before its end, and one
   at its end. Each needs a pass over all objects, which can't be cut: another thread makes it in
   the step before.
2. *Searching* for what holds the growth is cut into slices. At each step boundary it works until
   the slice is over, and goes on at the next one, over as many steps as it needs.
3. Only processor time of the training thread counts. A busy host makes a diagnosis later, but not
   shorter: the time that the thread waits for a core is no work.
4. *Confirming*: if the source has a limit for the first suspect (`limits`), counting and searching
   begin again over a longer window, and only its result counts. If the run ends before, the first
   one does, unless its tensors have stopped becoming more.
5. The next diagnosis may begin only when all of them together are within their share of the run's
   time; the first may begin at once. A search waits if it is far ahead of the share.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from memagent.components import live_objects
from memagent.leaks import census, limits, syntax
from memagent.leaks.census import GroupCount
from memagent.leaks.detectors.allocator_history import AllocatorHistoryDetector
from memagent.leaks.detectors.base import CodePosition, Detector, TimeBudget, Work
from memagent.leaks.detectors.host_memory import HostMemoryDetector
from memagent.leaks.detectors.loader_workers import LoaderWorkerDetector
from memagent.leaks.detectors.tensors import TensorDetector
from memagent.leaks.diagnosis import MAX_CPU_S
from memagent.leaks.suspect import Diagnosis, with_opaque_holders
from memagent.leaks.suspension import Survey
from memagent.wire.messages import Suspect

WINDOW_STEPS = 20
CONFIRMING_STEPS = 80
"""Window for a suspect that may stop growing: four times as long as what it grew in."""
MAX_SLICE_S = 0.02
"""Processor time per step."""
MIN_STEPS = 4
_COUNTED_KINDS = frozenset(
    (
        *("list", "dict", "deque", "set", "object", "hook", "closure", "exception", "cache"),
        *("view", "optimizer", "dataloader", "autograd_function", "allocation"),
    )
)
"""Kinds of suspects whose tensors become more."""
MAX_STACKS = 2_000
"""Call stacks kept per diagnosis."""


State = Literal["idle", "requested", "counting", "searching", "done"]


@dataclass
class Budget:
    """Processor time spent on diagnoses, as a share of the run's time."""

    share: float = 0.005
    advance_s: float = 1.0
    """How far a running diagnosis may be ahead of the share."""
    spent_s: float = 0.0

    def allows(self, elapsed_s: float) -> bool:
        """Return True if a diagnosis may begin `elapsed_s` after the run did."""
        return self.spent_s <= self.share * elapsed_s

    def allows_to_continue(self, elapsed_s: float) -> bool:
        """Return True if a running diagnosis may go on `elapsed_s` after the run began."""
        return self.spent_s <= self.advance_s + self.share * elapsed_s

    def spend(self, seconds: float) -> None:
        self.spent_s += seconds


@dataclass
class Finder:
    """Finds what holds growing memory.

    Call `request` from any thread, and `after_step` on the training thread at the end of each step.
    used_bytes: returns memory in use on the device or host now, None if unknown. clock: returns
    monotonic seconds. thread_clock: returns processor time of the calling thread.
    """

    used_bytes: Callable[[], int | None] = lambda: None
    window: int = WINDOW_STEPS
    confirming_window: int = CONFIRMING_STEPS
    max_slice_s: float = MAX_SLICE_S
    clock: Callable[[], float] = time.monotonic
    thread_clock: Callable[[], float] = time.thread_time
    started_at: float | None = None
    """Time by the clock at which the run began, None if it begins now."""
    budget: Budget = field(default_factory=Budget)
    diagnosis: Diagnosis | None = None
    """The newest diagnosis. It has no suspects if none were found."""
    history: AllocatorHistoryDetector | None = None
    """The newest record of the CUDA allocator, if requested."""

    def __post_init__(self) -> None:
        self._started_at = self.clock() if self.started_at is None else self.started_at
        self._requested: tuple[Detector, ...] = ()
        self._requested_window = self.window
        self._is_urgent = False
        self._active: tuple[Detector, ...] = ()
        self._window = self.window
        self._first_step = 0
        self._last_step = 0
        self._has_begun = False
        self._is_past_middle = False
        self._is_before_last = False
        self._check: Survey | None = None
        self._search: Work[list[Suspect]] | None = None
        self._time_budget = self._new_time_budget()
        self._unconfirmed: Diagnosis | None = None
        self._counts: tuple[GroupCount, ...] = ()

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Return the suspects of the newest diagnosis."""
        return self.diagnosis.suspects if self.diagnosis else ()

    @property
    def is_busy(self) -> bool:
        """Return True if a diagnosis is requested or running."""
        return bool(self._requested or self._active)

    @property
    def state(self) -> State:
        """Return what the finder does now."""
        if self._search is not None:
            return "searching"
        if self._active:
            return "counting"
        if self._requested:
            return "requested"
        return "done" if self.diagnosis is not None else "idle"

    @property
    def is_running(self) -> bool:
        """Return True if a diagnosis is running."""
        return bool(self._active)

    @property
    def observed_steps(self) -> int:
        """Return the steps that the running diagnosis has lasted, 0 if none is running."""
        return self._last_step - self._first_step if self._active else 0

    @property
    def first_step(self) -> int:
        """Return the step after which the running or newest window begins."""
        return self._first_step

    @property
    def end_step(self) -> int:
        """Return the step with which that window ends, if the run goes on."""
        return self._first_step + self._window

    def request(
        self,
        *,
        history: bool = False,
        host: bool = False,
        beyond_budget: bool = False,
        window: int | None = None,
    ) -> None:
        """Start a diagnosis as soon as the budget allows, or at once if `beyond_budget`.

        history: also record the CUDA allocator. host: also trace Python's own allocations, which
        makes small steps take two to five times as long. window: steps, if not the usual ones; use
        more for what grows rarely. Replaces an earlier request that hasn't
        started; a running diagnosis isn't disturbed.
        """
        sites: dict[CodePosition, float] = {}
        detectors: list[Detector] = [TensorDetector(self.used_bytes, sites), LoaderWorkerDetector()]
        if history:
            self.history = AllocatorHistoryDetector()
            detectors.append(self.history)
        if host:
            detectors.append(HostMemoryDetector(sites))
        self._is_urgent = beyond_budget
        self._requested_window = window or self.window
        self._requested = tuple(detectors)

    def after_step(self, step: int) -> Diagnosis | None:
        """Advance the diagnosis after `step`. Return it in the step that completes it."""
        if self._search is not None:
            return self._continue_search() if self._may_continue() else None
        if not self._active:
            if self._requested and (self._is_urgent or self.budget.allows(self._elapsed_s())):
                self._begin(step)
            return None
        self._last_step = step
        if self._is_before_last:
            return self._begin_search(step)
        self._read(step)
        if self._is_read_next():
            self._prepare()
        return None

    def _read(self, step: int) -> None:
        """Take the readings that are due after this step."""
        if not self._has_begun:
            self._has_begun = True
            self._first_step = step
            with self._timed():
                for detector in self._active:
                    detector.begin(step)
        elif not self._is_past_middle and 2 * self.observed_steps >= self._window:
            self._is_past_middle = True
            with self._timed():
                for detector in self._active:
                    detector.middle(step)
        if self.observed_steps >= self._window - 1:
            self._read_before_last(step)

    def _is_read_next(self) -> bool:
        """Return True if readings are due one step later."""
        observed = self.observed_steps + 1
        is_middle = not self._is_past_middle and 2 * observed >= self._window
        return self._is_before_last or is_middle or observed >= self._window - 1

    def _prepare(self) -> None:
        with self._timed():
            for detector in self._active:
                detector.prepare()

    def conclude(self) -> Diagnosis | None:
        """End the running diagnosis now, as the run ends. Return None if it saw too few steps."""
        self.max_slice_s = math.inf  # training won't go on, so it doesn't wait
        if self._search is not None:
            return self._continue_search()
        if self._unconfirmed is not None:
            return self._conclude_unconfirmed(self._unconfirmed)
        if self.observed_steps < MIN_STEPS:
            self.close()
            return None
        if not self._is_before_last:
            self._read_before_last(self._last_step)
        return self._begin_search(self._last_step + 1)

    def withdraw_stopped(self, step: int) -> tuple[Suspect, ...] | None:
        """Withdraw suspects if their tensors no longer become more, and return them.

        The first call begins a census, and returns None: call again after the next step. It decides
        about all of them or none. Suspects of other evidence stay.
        """
        if self.diagnosis is None or self.is_busy or not self._counts:
            return ()
        if self._check is None:
            self._check = Survey()
            return None
        check, self._check = self._check, None
        with self._timed():
            now = census.take(step, check.end())
        self.budget.spend(check.thread_s)
        return self._withdraw_unless_growing(now)

    def _withdraw_unless_growing(self, now: census.Census) -> tuple[Suspect, ...]:
        if self.diagnosis is None or any(count.has_grown_since(now) for count in self._counts):
            self._counts = tuple(count.at(now) for count in self._counts)
            return ()
        stopped = tuple(item for item in self.suspects if item.kind in _COUNTED_KINDS)
        rest = tuple(item for item in self.suspects if item.kind not in _COUNTED_KINDS)
        self.diagnosis = replace(self.diagnosis, suspects=rest, grown=())
        return stopped

    def close(self) -> None:
        """Drop the requested diagnosis or the running one."""
        active, search = self._active, self._search
        if self._check is not None:
            self._check.close()
            self._check = None
        self._active = ()
        self._requested = ()
        self._search = None
        self._unconfirmed = None
        if search is not None:
            search.close()
        for detector in active:
            detector.close()
        if active:
            syntax.clear_cache()

    def _elapsed_s(self) -> float:
        return self.clock() - self._started_at

    def _conclude_unconfirmed(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return the first result: the variables of the script may be gone by now."""
        self.diagnosis = diagnosis
        is_late = self.observed_steps >= WINDOW_STEPS
        self.close()
        if is_late and self._counts:
            now = census.take(self._last_step, live_objects.live_tensors())
            self._withdraw_unless_growing(now)
        return self.diagnosis

    def _may_continue(self) -> bool:
        return self._is_urgent or self.budget.allows_to_continue(self._elapsed_s())

    def _new_time_budget(self) -> TimeBudget:
        return TimeBudget(MAX_CPU_S, self.thread_clock)

    def _begin(self, step: int) -> None:
        self._active = self._requested
        self._requested = ()
        self._window = self._requested_window
        self._first_step = self._last_step = step
        self._has_begun = False
        self._is_past_middle = False
        self._is_before_last = False
        self._time_budget = self._new_time_budget()
        if self.max_slice_s < math.inf:
            self._prepare()
        else:  # the caller waits for the result
            self._read(step)

    def _read_before_last(self, step: int) -> None:
        self._is_before_last = True
        with self._timed():
            for detector in self._active:
                detector.before_last(step)

    def _begin_search(self, step: int) -> Diagnosis | None:
        self._last_step = step
        self._search = self._search_of_all(step)
        return self._continue_search()

    def _search_of_all(self, step: int) -> Work[list[Suspect]]:
        suspects: list[Suspect] = []
        # Tracing detectors end first: they slow down the others, and would record them.
        for detector in reversed(self._active):
            suspects += yield from detector.search(step, self._time_budget)
        return with_opaque_holders(suspects)

    def _continue_search(self) -> Diagnosis | None:
        """Search for one slice. Return the diagnosis if that was the last one."""
        search = self._search
        if search is None:
            return None
        with self._timed():
            try:
                next(search)
                return None
            except StopIteration as end:
                suspects = end.value
        return self._end(suspects)

    def _end(self, suspects: list[Suspect]) -> Diagnosis | None:
        detectors = self._active
        recorded = next((detector for detector in detectors if detector.grown), Detector())
        self.budget.spend(sum(detector.thread_s for detector in detectors))
        growths = (detector.growth_bytes_per_step for detector in detectors)
        suspects.sort(key=lambda item: -(item.bytes_per_step or 0) * item.confidence)
        diagnosis = Diagnosis(
            self._first_step,
            self._last_step,
            tuple(suspects),
            round(self._time_budget.used_s(), 6),
            recorded.method,
            tuple(recorded.grown[:MAX_STACKS]),
            next(filter(None, growths), None),
            self._time_budget.was_hit,
        )
        self._counts = tuple(count for detector in detectors for count in detector.counts)
        unconfirmed = self._unconfirmed
        with self._timed():
            is_unsure = self._is_unsure(suspects)
            self.close()
        if is_unsure:
            self._confirm(diagnosis, detectors)
            return None
        if unconfirmed is not None and diagnosis.is_cut_short and not suspects:
            diagnosis = unconfirmed
        self.diagnosis = diagnosis
        return diagnosis

    def _is_unsure(self, suspects: list[Suspect]) -> bool:
        """Return True if a longer window is to confirm the first suspect."""
        is_short = self._window < self.confirming_window and self.max_slice_s < math.inf
        may_begin = is_short and self._unconfirmed is None and not self._requested
        return may_begin and bool(suspects) and limits.may_stop_growing(suspects[0])

    def _confirm(self, diagnosis: Diagnosis, detectors: Sequence[Detector]) -> None:
        """Begin again with new detectors of the same kinds."""
        kinds = set(map(type, detectors))
        self.request(
            history=AllocatorHistoryDetector in kinds,
            host=HostMemoryDetector in kinds,
            beyond_budget=self._is_urgent,
            window=self.confirming_window,
        )
        self._begin(self._last_step)
        self._unconfirmed = diagnosis

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the processor time of a slice. If it raises, switch everything off."""
        budget = self._time_budget
        earlier_s = budget.used_s()
        budget.begin_slice(self.max_slice_s)
        try:
            yield
        except BaseException:
            self.close()
            raise
        finally:
            budget.end_slice()
            self.budget.spend(budget.used_s() - earlier_s)


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
    finder = Finder(window=steps, max_slice_s=math.inf)  # the caller waits for the result
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
