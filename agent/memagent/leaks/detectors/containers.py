"""Growth of the host's containers, whatever they hold, without a trace of allocations.

It costs next to nothing, so each window can have it: also a long one, for what grows rarely.
"""

from __future__ import annotations

from collections.abc import Callable

from memagent.components.live_objects import TensorReading, young_ids
from memagent.leaks.container_suspects import suspects_of_containers
from memagent.leaks.cyclic_garbage import make_old
from memagent.leaks.detectors.base import Detector, Work
from memagent.leaks.free_memory import BoundCheck
from memagent.leaks.growing_containers import MIN_BYTES_PER_STEP, ContainerCensus
from memagent.leaks.host_suspects import MIN_GROWTH_SHARE, rate_of, with_rates_up_to
from memagent.leaks.time_budgets import TimeBudget
from memagent.wire.messages import Suspect


class ContainerDetector(Detector):
    """Finds containers that grow, by their lengths. used_bytes: returns the host's memory in use.

    1. Lengths are noted at the beginning and in the middle, by the pass that lists tensors.
    2. At the end, what grew in both halves is suspected, up to the growth of all memory. A small
       part of that is no suspect.
    """

    def __init__(self, used_bytes: Callable[[], int | None], bounds: BoundCheck) -> None:
        self._used_bytes = used_bytes
        self._bounds = bounds
        self._containers = ContainerCensus()
        self._first_step = 0
        self._first_bytes: int | None = None
        self._has_middle = False

    def read_tensors(self) -> TensorReading:
        """Read all tensors. Note the lengths of containers by the same pass, in its thread."""
        return self._containers.note()

    def prepare(self, step: int) -> None:
        self._containers.prepare()

    def begin(self, step: int) -> None:
        self._first_step = step
        self._containers.begin(step)

    def read_used_bytes(self) -> None:
        self._first_bytes = self._used_bytes()

    def middle(self, step: int) -> None:
        make_old()  # what is young at the end is new then
        self._has_middle = True
        self._containers.middle(step)

    def search(self, step: int, budget: TimeBudget) -> Work[list[Suspect]]:
        used_bytes = self._used_bytes()
        if not self._has_middle or budget.is_over() or None in (self._first_bytes, used_bytes):
            return []
        growing = self._containers.end(step, young_ids())
        sites = [None] * len(growing)
        suspects, _ = yield from suspects_of_containers(growing, sites, (), self._bounds, budget)
        rate = ((used_bytes or 0) - (self._first_bytes or 0)) / max(1, step - self._first_step)
        least = max(MIN_BYTES_PER_STEP, MIN_GROWTH_SHARE * rate)
        return [
            item
            for item in with_rates_up_to(rate, [item for item in suspects if rate_of(item)])
            if rate_of(item) >= least
        ]

    def close(self) -> None:
        self._containers = ContainerCensus()
        self._has_middle = False
