"""Growth of tensors on any device: four censuses by three passes, then a diagnosis."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from memagent.components import live_objects
from memagent.components.live_objects import TensorReading
from memagent.leaks import autograd_graphs, census
from memagent.leaks.census import MIN_SHARE, Census
from memagent.leaks.detectors.base import CodePosition, Detector, Work
from memagent.leaks.diagnosis import diagnose
from memagent.leaks.free_memory import BoundCheck
from memagent.leaks.registrations import Registrations
from memagent.leaks.suspension import Survey
from memagent.leaks.time_budgets import TimeBudget
from memagent.wire.messages import Suspect


class TensorDetector(Detector):
    """`used_bytes` returns memory in use on the device or host now, None if unknown.

    sites: the tensors per step that remain of each line of the script, as far as that was traced.
    """

    def __init__(
        self,
        used_bytes: Callable[[], int | None],
        sites: dict[CodePosition, float] | None = None,
        bounds: BoundCheck | None = None,
    ) -> None:
        self._used_bytes = used_bytes
        self._bounds = bounds
        self._sites = {} if sites is None else sites
        self._first: Census | None = None
        self.middle_census = None
        self._before_last: Census | None = None
        self._first_used_bytes: int | None = None
        self._survey: Survey | None = None
        self._registrations = Registrations()
        self.read_tensors: Callable[[], TensorReading] = live_objects.read_tensors
        """Makes the pass of each reading in another thread. It may read containers by it."""

    def prepare(self, step: int) -> None:
        if self._survey is None and "torch" in sys.modules:
            self._survey = Survey(self.read_tensors)

    def _allocated_bytes(self) -> int | None:
        """Return memory in use, without what a trace of Python's allocations takes."""
        used = self._used_bytes()
        return None if used is None else used - tracemalloc.get_tracemalloc_memory()

    def _live_tensors(self, *, also_next: bool = False) -> list[Any]:
        """Return the prepared list, else make the pass now. also_next: the next step needs one."""
        survey, self._survey = self._survey, None
        if survey is None:
            return live_objects.live_tensors()
        tensors = survey.read()
        if also_next and not survey.must_repeat:
            self._survey = survey
        else:
            survey.close()
            self.thread_s += survey.thread_s
        return tensors

    def _take_with_nodes(self, step: int) -> Census:
        tensors = self._live_tensors()
        nodes = autograd_graphs.count_nodes(tensors)
        result = census.take(step, tensors, nodes, self._first)
        return replace(result, newest_node=autograd_graphs.newest_node(tensors))

    def begin(self, step: int) -> None:
        self._first = self._take_with_nodes(step)
        self._registrations.start()

    def read_used_bytes(self) -> None:
        self._first_used_bytes = self._allocated_bytes()

    def middle(self, step: int) -> None:
        self.middle_census = self._take_with_nodes(step)

    def before_last(self, step: int) -> None:
        earlier = self.middle_census or self._first
        self._before_last = census.take(step, self._live_tensors(also_next=True), earlier=earlier)

    def measure_growth(self, step: int) -> int | None:
        """Return by how much memory in use grew per step, None if unknown. Reads it once."""
        if self.growth_bytes_per_step is None and self._first_used_bytes is not None:
            used, first = self._allocated_bytes(), self._first
            if used is not None and first is not None:
                growth = max(0, used - self._first_used_bytes)
                self.growth_bytes_per_step = growth // max(1, step - first.step)
        return self.growth_bytes_per_step

    def _storage_growth(self, device: str) -> int:
        """Return the bytes per step by which tensors grew, on all devices for ""."""
        first, last = self._first, self._before_last
        if first is None or last is None:
            return 0
        return (last.storage_bytes(device) - first.storage_bytes(device)) // max(
            1, last.step - first.step
        )

    def search(self, step: int, budget: TimeBudget) -> Work[list[Suspect]]:
        if self._first is None or self._before_last is None or budget.is_over():
            return []
        self.measure_growth(step)
        rate, self.host_tensors_bytes_per_step = map(self._storage_growth, ("", "cpu"))
        self.are_tensors = rate >= MIN_SHARE * max(1, self.growth_bytes_per_step or 0)
        suspects, self.counts = yield from diagnose(
            self._first,
            self._before_last,
            step,
            self._live_tensors(),
            budget,
            middle=self.middle_census,
            sites=self._sites,
            bounds=self._bounds,
            registered=self._registrations.lines,
            measured_bytes_per_step=self.growth_bytes_per_step,
        )
        self.are_tensors |= bool(self.counts)
        return suspects

    def close(self) -> None:
        if self._survey is not None:
            self._survey.close()
            self._survey = None
        self._registrations.stop()
        self._first = None
        self.middle_census = None
        self._before_last = None
        self._first_used_bytes = None
        self._sites = {}
        self.read_tensors = live_objects.read_tensors
