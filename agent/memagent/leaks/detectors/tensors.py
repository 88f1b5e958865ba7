"""Growth of tensors on any device: four censuses, then a diagnosis."""

from __future__ import annotations

from collections.abc import Callable

from memagent.leaks import autograd_graphs, census
from memagent.leaks.census import Census
from memagent.leaks.detectors.base import Detector, TimeBudget, Work
from memagent.leaks.diagnosis import diagnose
from memagent.wire.messages import Suspect


class TensorDetector(Detector):
    """`used_bytes` returns memory in use on the device or host now, None if unknown."""

    def __init__(self, used_bytes: Callable[[], int | None]) -> None:
        self._used_bytes = used_bytes
        self._first: Census | None = None
        self._middle: Census | None = None
        self._before_last: Census | None = None
        self._first_used_bytes: int | None = None

    def begin(self, step: int) -> None:
        self._first_used_bytes = self._used_bytes()
        tensors = census.live_tensors()
        self._first = census.take(step, tensors, autograd_graphs.count_nodes(tensors))

    def middle(self, step: int) -> None:
        self._middle = census.take(step, census.live_tensors())

    def before_last(self, step: int) -> None:
        self._before_last = census.take(step, census.live_tensors())

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
            budget,
            middle=self._middle,
            measured_bytes_per_step=self.growth_bytes_per_step,
        )
        return suspects

    def close(self) -> None:
        self._first = None
        self._middle = None
        self._before_last = None
        self._first_used_bytes = None
