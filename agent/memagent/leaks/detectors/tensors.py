"""Growth of tensors, on any device: three censuses and a diagnosis."""

from __future__ import annotations

from collections.abc import Callable

from memagent.leaks import autograd_graphs, census
from memagent.leaks.census import Census
from memagent.leaks.detectors.base import Detector, TimeBudget
from memagent.leaks.diagnosis import diagnose
from memagent.wire.messages import Suspect


class TensorDetector(Detector):
    """`used_bytes`: what the device or the host has in use now, None if unknown."""

    def __init__(self, used_bytes: Callable[[], int | None]) -> None:
        self._used_bytes = used_bytes
        self._first: Census | None = None
        self._before: Census | None = None
        self._used: int | None = None

    def begin(self, step: int) -> None:
        self._used = self._used_bytes()
        tensors = census.live_tensors()
        self._first = census.take(step, tensors, autograd_graphs.count(tensors))

    def before(self, step: int) -> None:
        self._before = census.take(step, census.live_tensors())

    def end(self, step: int, deadline: TimeBudget) -> list[Suspect]:
        if self._first is None or self._before is None or deadline.is_over():
            return []
        self.growth_bytes_per_step = self._rate(step - self._first.step)
        return diagnose(
            self._first,
            self._before,
            step,
            deadline,
            measured_bytes_per_step=self.growth_bytes_per_step,
        )

    def close(self) -> None:
        self._first = self._before = self._used = None

    def _rate(self, steps: int) -> int | None:
        now = self._used_bytes()
        return (
            None if now is None or self._used is None else max(0, now - self._used) // max(1, steps)
        )
