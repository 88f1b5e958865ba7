"""Window of steps of one diagnosis: which detectors take readings in it, and when.

They read at its beginning, in its middle, one step before its end, and at its end. Each reading
needs a pass over all objects, which can't be cut: another thread makes it in the step before, after
`prepare`. In the steps near the end they look for what is likely to have grown by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from memagent.leaks import WINDOW_STEPS
from memagent.leaks.census import Census
from memagent.leaks.detectors.allocator_history import AllocatorHistoryDetector
from memagent.leaks.detectors.base import CodePosition, Detector
from memagent.leaks.detectors.containers import ContainerDetector
from memagent.leaks.detectors.host_memory import HostMemoryDetector
from memagent.leaks.detectors.loader_workers import LoaderWorkerDetector
from memagent.leaks.detectors.tensors import TensorDetector
from memagent.leaks.detectors.waiting_threads import ThreadDetector
from memagent.leaks.free_memory import BoundCheck
from memagent.leaks.suspect import Diagnosis
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.trace_schedule import TraceSchedule
from memagent.wire.messages import Suspect

MAX_STACKS = 2_000
"""Call stacks kept per diagnosis."""
_NEAR_END_STEPS = 4
"""Steps over which work before the last reading is spread: lines to look for, and one for each."""


@dataclass(frozen=True)
class WindowRequest:
    """What a diagnosis is to read, and over how many steps."""

    steps: int = WINDOW_STEPS
    history: bool = False
    """Record the CUDA allocator, too."""
    host: bool = False
    """Trace Python's own allocations, too."""
    containers: bool = False
    """Look for containers of the host that grow, also without a trace."""

    def over(self, steps: int) -> WindowRequest:
        """Return the same over another number of steps."""
        return replace(self, steps=steps)

    def detectors(
        self,
        used_bytes: Callable[[], int | None],
        bounds: BoundCheck,
        schedule: TraceSchedule | None = None,
    ) -> tuple[Detector, ...]:
        """Return new detectors. `used_bytes`: returns memory in use now, None if unknown.

        schedule: of the steps that are traced.
        """
        sites: dict[CodePosition, float] = {}
        tensors = TensorDetector(used_bytes, sites, bounds)
        threads = ThreadDetector(tensors.measure_growth)
        detectors: list[Detector] = [tensors, LoaderWorkerDetector(), threads]
        if self.history:
            detectors.append(AllocatorHistoryDetector())
        if self.host:
            host = HostMemoryDetector(sites, bounds, schedule)
            tensors.read_tensors = host.read_tensors
            detectors.append(host)
        elif self.containers:
            containers = ContainerDetector(used_bytes, bounds)
            tensors.read_tensors = containers.read_tensors
            detectors.append(containers)
        return tuple(detectors)


class ReadingWindow:
    """The readings of one diagnosis. It's active until it's closed."""

    def __init__(
        self,
        request: WindowRequest,
        detectors: tuple[Detector, ...] = (),
        step: int = 0,
        bounds: BoundCheck | None = None,
    ) -> None:
        self.request = request
        self.detectors = detectors
        self.bounds = bounds or BoundCheck()
        """Bounds of what has grown."""
        self.first_step = step
        """The step after which it begins."""
        self.last_step = step
        self.is_before_last = False
        """True once the readings of one step before the end have been taken."""
        self._has_begun = False
        self._is_past_middle = False

    @property
    def is_active(self) -> bool:
        return bool(self.detectors)

    @property
    def observed_steps(self) -> int:
        """Return the steps that it has lasted, 0 if it isn't active."""
        return self.last_step - self.first_step if self.is_active else 0

    @property
    def is_filling(self) -> bool:
        """Return True if most of the growth is that of what fills up to a bound."""
        rate = self.bounds.filling_bytes_per_step
        growths = (detector.growth_bytes_per_step for detector in self.detectors)
        return 2 * rate >= max(1, next(filter(None, growths), 0))

    @property
    def middle_census(self) -> Census | None:
        """Return the tensors halfway, None before that."""
        return next(filter(None, (item.middle_census for item in self.detectors)), None)

    def prepare(self) -> None:
        """Get ready for readings, one step before them."""
        # that of tensors last: it starts the thread that reads containers, too
        for detector in reversed(self.detectors):
            detector.prepare(self.last_step)

    @property
    def is_due(self) -> bool:
        """Return True if readings are due after the last step."""
        steps = self.observed_steps
        return not self._has_begun or self._is_due_at(steps) or self._is_near_end(steps)

    @property
    def is_due_next(self) -> bool:
        """Return True if readings are due one step later."""
        return self.is_before_last or self._is_due_at(self.observed_steps + 1)

    def end_step(self, step: int, took_s: float | None = None) -> None:
        """Note the end of a step, and its processor time in the training thread."""
        self.last_step = step
        for detector in self.detectors:
            detector.after_step(took_s)

    @property
    def extra_s(self) -> float:
        """Return the processor time of other threads, and what steps took longer."""
        return sum(detector.thread_s + detector.slow_down_s for detector in self.detectors)

    def read(self) -> None:
        """Take the readings that are due after the last step."""
        step = self.last_step
        if not self._has_begun:
            self._has_begun = True
            self.first_step = step
            for detector in self.detectors:
                detector.begin(step)
            for detector in self.detectors:
                detector.read_used_bytes()
        elif self._is_middle(self.observed_steps):
            self._is_past_middle = True
            for detector in self.detectors:
                detector.middle(step)
        elif self._is_near_end(self.observed_steps):
            for detector in self.detectors:
                detector.near_end(step)
        if self.observed_steps >= self.request.steps - 1:
            self.read_before_last()

    def read_before_last(self) -> None:
        """Take the readings of one step before the end: the next step is the last one."""
        self.is_before_last = True
        for detector in self.detectors:
            detector.before_last(self.last_step)

    def diagnosis(self, suspects: Sequence[Suspect], budget: TimeBudget) -> Diagnosis:
        """Return the result of this window, and of a search that took this time."""
        recorded = next((detector for detector in self.detectors if detector.grown), Detector())
        growths = (detector.growth_bytes_per_step for detector in self.detectors)
        are_tensors = any(detector.are_tensors for detector in self.detectors)
        natives = (detector.native_bytes_per_step for detector in self.detectors)
        return Diagnosis(
            self.first_step,
            self.last_step,
            tuple(suspects),
            round(budget.used_s(), 6),
            recorded.method,
            tuple(recorded.grown[:MAX_STACKS]),
            next(filter(None, growths), None),
            are_tensors,
            None if suspects or are_tensors else next(filter(None, natives), None),
            budget.was_hit,
        )

    def close(self) -> None:
        """Release what the detectors hold."""
        detectors, self.detectors = self.detectors, ()
        for detector in detectors:
            detector.close()

    def _is_due_at(self, observed_steps: int) -> bool:
        return self._is_middle(observed_steps) or observed_steps >= self.request.steps - 1

    def _is_near_end(self, observed_steps: int) -> bool:
        left = self.request.steps - 1 - observed_steps
        return self._is_past_middle and 0 < left <= _NEAR_END_STEPS

    def _is_middle(self, observed_steps: int) -> bool:
        return not self._is_past_middle and 2 * observed_steps >= self.request.steps
