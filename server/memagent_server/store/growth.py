"""Growth of a stream's memory, looked at in hindsight: did it go on, or end and begin again?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from memagent.forecast.trend import MIN_STEP_UP, PAUSE_RATIO
from memagent_server.store.models import StreamRow
from memagent_server.store.series import series

FIELDS = ("allocated_bytes", "device_used_bytes")
POINTS = 200


@dataclass(frozen=True)
class GrowthSpan:
    """Growth of a stream's memory between two steps, as the forecaster reports it."""

    stream_id: int
    since_step: int
    step: int

    def went_on(self, session: Session, run_id: str) -> bool:
        """Return True if the growth had no end in between.

        It ends with a pause of twice the share of its age from which the forecaster takes it for
        over: what is judged in hindsight needs no haste. So a handful of points says nothing.
        """
        stream = session.get_one(StreamRow, (run_id, self.stream_id))
        chart = series(
            session,
            run_id,
            fields=FIELDS,
            rank=stream.rank,
            device=stream.device,
            attempt=stream.attempt,
            first=self.since_step,
            last=self.step,
            points=POINTS,
        )
        # the lowest value of each point: memory that is freed now and then grows if its floor does
        floors = next((low for name in FIELDS if any(low := chart.series[name].min)), ())
        pairs = zip(chart.step, floors, strict=False)
        points = [(step, low) for step, low in pairs if step is not None and low]
        age = self.step - self.since_step
        return bool(points) and self.longest_pause(points) <= 2 * PAUSE_RATIO * age

    def longest_pause(self, points: Sequence[tuple[int, float]]) -> float:
        """Return for how many steps values reached no new high. `points`: (step, value), in order.

        Steps without points count: what happened in them isn't known.
        """
        values = [value for _, value in points]
        step_up = MIN_STEP_UP * (max(values) - values[0])
        since, high, longest = self.since_step, values[0], 0
        for step, value in points:
            longest = max(longest, step - since)
            if value > high + step_up:
                high, since = value, step
        return max(longest, self.step - since)
