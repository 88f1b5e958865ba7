"""Growth of tensors on any device: four censuses, then a diagnosis."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from memagent.components import live_objects
from memagent.leaks import autograd_graphs, census
from memagent.leaks.census import Census
from memagent.leaks.detectors.base import CodePosition, Detector, Work
from memagent.leaks.diagnosis import diagnose
from memagent.leaks.suspension import Survey
from memagent.leaks.time_budgets import TimeBudget
from memagent.wire.messages import Suspect


class TensorDetector(Detector):
    """`used_bytes` returns memory in use on the device or host now, None if unknown.

    sites: the tensors per step that remain of each line of the script, as far as that was traced.
    """

    def __init__(
        self, used_bytes: Callable[[], int | None], sites: dict[CodePosition, float] | None = None
    ) -> None:
        self._used_bytes = used_bytes
        self._sites = {} if sites is None else sites
        self._first: Census | None = None
        self.middle_census = None
        self._before_last: Census | None = None
        self._first_used_bytes: int | None = None
        self._survey: Survey | None = None

    def prepare(self) -> None:
        if self._survey is None and "torch" in sys.modules:
            self._survey = Survey()

    def _live_tensors(self) -> list[Any]:
        """Return the prepared list, else make the pass now."""
        survey, self._survey = self._survey, None
        if survey is None:
            return live_objects.live_tensors()
        tensors = survey.end()
        self.thread_s += survey.thread_s
        return tensors

    def _take_with_nodes(self, step: int) -> Census:
        tensors = self._live_tensors()
        result = census.take(step, tensors, autograd_graphs.count_nodes(tensors))
        return replace(result, newest_node=autograd_graphs.newest_node(tensors))

    def begin(self, step: int) -> None:
        self._first_used_bytes = self._used_bytes()
        self._first = self._take_with_nodes(step)

    def middle(self, step: int) -> None:
        self.middle_census = self._take_with_nodes(step)

    def before_last(self, step: int) -> None:
        self._before_last = census.take(step, self._live_tensors())

    def search(self, step: int, budget: TimeBudget) -> Work[list[Suspect]]:
        if self._first is None or self._before_last is None or budget.is_over():
            return []
        used, steps = self._used_bytes(), max(1, step - self._first.step)
        if used is not None and self._first_used_bytes is not None:
            self.growth_bytes_per_step = max(0, used - self._first_used_bytes) // steps
        suspects, self.counts = yield from diagnose(
            self._first,
            self._before_last,
            step,
            self._live_tensors(),
            budget,
            middle=self.middle_census,
            sites=self._sites,
            measured_bytes_per_step=self.growth_bytes_per_step,
        )
        return suspects

    def close(self) -> None:
        if self._survey is not None:
            self._survey.close()
            self._survey = None
        self._first = None
        self.middle_census = None
        self._before_last = None
        self._first_used_bytes = None
        self._sites = {}
