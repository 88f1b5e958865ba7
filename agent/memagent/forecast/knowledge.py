"""Knowledge of a run in addition to its samples, and what it makes of its growth.

It comes from the script, its optimizers, the leak finder, the estimator and the last run, at any
time.
"""

from __future__ import annotations

from msgspec.structs import replace

from memagent.forecast.levels import KnownGrowth, Situation
from memagent.forecast.predecessor import Expectation, GrowthOutcome, Predecessor, expectation
from memagent.forecast.projection import Projection, project
from memagent.forecast.signals import Signals
from memagent.forecast.types import Growing, Level

DIAGNOSIS_STEPS = 40
"""Steps for which a page waits for what a diagnosis finds."""


class Knowledge:
    """Call `learn` for what is new, and `expect` with each new projection."""

    __slots__ = (
        "_diagnosed_at",
        "_expected",
        "epoch_steps",
        "growth",
        "predecessor",
        "predicted_peak_bytes",
    )

    def __init__(self, epoch_steps: int | None, predicted_peak_bytes: int | None) -> None:
        self.epoch_steps = epoch_steps
        self.predicted_peak_bytes = predicted_peak_bytes
        self.growth = KnownGrowth()
        self.predecessor: Predecessor | None = None
        self._expected: Expectation | None = None
        self._diagnosed_at = 0

    def learn(
        self,
        *,
        epoch_steps: int | None,
        predicted_peak_bytes: int | None,
        predecessor: Predecessor | None,
    ) -> None:
        """Update what is known; None changes nothing."""
        self.predecessor = predecessor or self.predecessor
        if epoch_steps is not None:
            self.epoch_steps = epoch_steps
        if predicted_peak_bytes is not None:
            self.predicted_peak_bytes = predicted_peak_bytes

    def learn_growth(
        self, step: int, grows: Growing | None, end_bytes: int | None, floor: float | None
    ) -> None:
        """Update what grows. floor: bytes held now, None before the first step."""
        if grows not in (None, self.growth.grows):
            self._diagnosed_at = step
        self.growth = self.growth.learn(grows, end_bytes, floor)

    @property
    def outcome(self) -> GrowthOutcome | None:
        """Return the end of the same growth in the last run, if it is known."""
        return None if self._expected is None else self._expected.outcome

    @property
    def sentence(self) -> str | None:
        """Return how the last run ended."""
        return None if self.predecessor is None else self.predecessor.sentence(self.outcome)

    def expect(
        self,
        nearest: Projection | None,
        step: int,
        *,
        headroom_bytes: float,
        planned_steps_left: float,
    ) -> Projection | None:
        """Return the projection as the last run ended it."""
        self._expected = None
        if nearest is None or self.predecessor is None:
            return nearest
        self._expected = expectation(
            self.predecessor,
            nearest,
            step,
            headroom_bytes=headroom_bytes,
            planned_steps_left=planned_steps_left,
        )
        if self._expected is None or self._expected.death_step is None:
            return nearest
        return nearest.ending_in(self._expected.death_step - step)

    def situation(
        self,
        step: int,
        *,
        previous: Level,
        planned_steps_left: float,
        seconds_left: float | None,
        floor: float,
        peak: float,
        headroom_bytes: float,
    ) -> Situation:
        """Return the facts that decide how far the newest projection may page."""
        return Situation(
            step=step,
            previous=previous,
            planned_steps_left=planned_steps_left,
            seconds_left=seconds_left,
            peak_bytes=peak,
            epoch_steps=self.epoch_steps,
            predicted_peak_bytes=self.predicted_peak_bytes,
            grows=self.growth.counts_as(floor, headroom_bytes),
            is_diagnosed=self.growth.grows == "unknown"
            and step - self._diagnosed_at <= DIAGNOSIS_STEPS,
            outcome=self.outcome,
        )


def nearest_projection(
    step: int,
    signals: Signals,
    growth: KnownGrowth,
    *,
    limit_bytes: int,
    host_limit_bytes: int | None,
    max_input_size: float | None,
) -> Projection | None:
    """Return the projection that ends first, None if nothing that grows reaches a limit."""
    if not signals.trends:
        return None
    nearest = _of_device(step, signals, growth, limit_bytes, max_input_size)
    host = signals.trends.get("host_memory")
    if host is not None and host_limit_bytes:
        headroom = host_limit_bytes - signals.expected_host(step)
        of_host = project({"host_memory": host}, headroom, host_limit_bytes)
        if of_host is not None:
            of_host = of_host.at_a_jump(host, host_limit_bytes - host.value, step)
            if nearest is None or of_host.steps_left < nearest.steps_left:
                nearest = of_host
    if nearest is not None and signals.pauses(nearest.cause, step):
        return replace(nearest, pauses=True)
    return nearest


def _of_device(
    step: int, signals: Signals, growth: KnownGrowth, limit_bytes: int, max_input_size: float | None
) -> Projection | None:
    headroom = limit_bytes - signals.expected_need(step)
    device = signals.trends.copy()
    device.pop("host_memory", None)
    if "input" in device and _inputs_will_fit(signals, limit_bytes, max_input_size):
        del device["input"]
    has_no_end = growth.counts_as(signals.floor, signals.most_headroom(limit_bytes)) == "list"
    if "leak" in device and has_no_end:
        device["leak"] = device["leak"].without_bend()
    elif growth.fits(signals.floor, headroom):
        device.pop("leak", None)
    nearest = project(
        device, headroom, limit_bytes, signals.need_bounds, is_device=signals.is_device
    )
    if nearest is not None:
        if has_no_end and nearest.cause == "leak":
            nearest = nearest.without_end()
        trend = device[nearest.cause]
        if trend.period and len(device) == 1:
            left = limit_bytes - signals.need_at_fit(nearest.cause)
            nearest = nearest.at_a_jump(trend, left, step)
    return nearest


def _inputs_will_fit(signals: Signals, limit_bytes: int, max_input_size: float | None) -> bool:
    """Return True if growth by inputs is known to end at the largest input.

    If the floor keeps what inputs need, it has to end below the limit.
    """
    growth = signals.future_input_growth(max_input_size)
    if growth is not None:
        return signals.need + growth <= limit_bytes
    return signals.excess.at_input(max_input_size) is not None
