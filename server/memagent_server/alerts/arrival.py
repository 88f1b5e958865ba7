"""Arrival of a stream's samples: the time of a step, and whether the stream is catching up."""

from __future__ import annotations

from dataclasses import dataclass

from memagent_server.store.history import StoredChunk

MAX_DELAY_S = 60.0
"""Samples that arrive within this delay are on time, at any rate of arrival."""
CATCH_UP_RATIO = 2.0
"""Seconds of samples per second of arrival above which a stream is catching up."""
STEP_TIME_WEIGHT = 0.2
"""Weight of the newest chunk in the moving average of the step time."""


@dataclass
class ArrivalRate:
    """Arrival of a stream's samples, chunk by chunk: the step time, and whether they come late."""

    time_s: float | None = None
    received_at: float | None = None
    step: int | None = None
    step_s: float | None = None
    is_late: bool = False

    def update(self, chunk: StoredChunk) -> None:
        steps, times = chunk.columns["step"], chunk.columns.get("time_s")
        if not times or times[-1] is None:
            return
        step, time_s = int(steps[-1] or 0), float(times[-1])
        if self.time_s is not None and self.received_at is not None:
            taken_s, arrived_s = time_s - self.time_s, chunk.received_at - self.received_at
            is_delayed = chunk.received_at - time_s > MAX_DELAY_S
            self.is_late = is_delayed and taken_s > CATCH_UP_RATIO * arrived_s
        if self.step is not None:
            self._update_step_time(self.step, self.time_s, step, time_s)
        else:
            self._update_step_time(int(steps[0] or 0), times[0], step, time_s)
        self.step = step
        self.time_s = time_s
        self.received_at = chunk.received_at

    def _update_step_time(
        self, first_step: int, first_s: float | None, step: int, time_s: float
    ) -> None:
        if first_s is None or step <= first_step or time_s <= first_s:
            return
        newest_s = (time_s - first_s) / (step - first_step)
        if self.step_s is None:
            self.step_s = newest_s
        else:
            self.step_s += STEP_TIME_WEIGHT * (newest_s - self.step_s)
