"""Today's practice and the forecaster behind one interface: a trace in, the first alarm out. Each
sees the past only.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.forecast.finder_results import measured
from benchmarks.forecast.traces import Alarm, Trace, Verdict
from memagent.forecast import Forecast, Forecaster, feed_columns
from memagent.forecast.types import LEVELS, PAGING_LEVELS, Level
from memagent.leaks import WINDOW_STEPS
from memagent.leaks.triggers import (
    EARLY_EVERY,
    EARLY_STEPS,
    early_growth_detectors,
    slow_growth_detectors,
)

Detector = Callable[[Trace], Alarm | None]
WINDOW_S, HORIZON_S = 900.0, 3600.0
ENTRY_ERROR = 0.1
"""Relative error of a buffer's rest at most: later entries differ from those seen."""


def memagent(trace: Trace) -> Alarm | None:
    return _first_alarm(trace)


def memagent_notices(trace: Trace) -> Alarm | None:
    """Count notices as pages."""
    return _first_alarm(trace, LEVELS[1:])


def oracle(trace: Trace, requested: int, window: int = WINDOW_STEPS) -> list[Verdict]:
    """Return the truth of the program, as soon as a diagnosis is over.

    A bound that memory doesn't suffice for is none. The rest of a buffer is known from its entries
    so far, which differ from later ones.
    """
    row = requested + window
    if trace.grows == "buffer" and trace.death is None:
        error = random.Random(trace.limit_bytes).uniform(-ENTRY_ERROR, ENTRY_ERROR)
        return [Verdict(row, "buffer", 1 + error)]
    return [Verdict(row, "list" if trace.grows == "buffer" else trace.grows)]


Finder = Callable[[Trace, int, int], list[Verdict]]
"""Returns the verdicts after a request at a row, of a diagnosis of so many steps."""


def memagent_with_finder(trace: Trace) -> Alarm | None:
    """Tell the forecaster the recorded verdicts of the product's finder."""
    return _first_alarm(trace, finder=measured)


def memagent_with_oracle(trace: Trace) -> Alarm | None:
    """Tell the forecaster what grows when a diagnosis would that the agent requests."""
    return _first_alarm(trace, finder=oracle)


def memagent_with_predecessor(trace: Trace) -> Alarm | None:
    """Tell the forecaster of the run's predecessor."""
    return _first_alarm(trace, with_predecessor=True)


def memagent_with_both(trace: Trace) -> Alarm | None:
    """Tell it of the predecessor and, as soon as it's found, of what grows."""
    return _first_alarm(trace, finder=oracle, with_predecessor=True)


def _first_alarm(
    trace: Trace,
    levels: Sequence[Level] = PAGING_LEVELS,
    *,
    finder: Finder | None = None,
    with_predecessor: bool = False,
) -> Alarm | None:
    fed = feed(trace, finder=finder, with_predecessor=with_predecessor)
    for _, forecast in fed:
        if forecast.level in levels:
            return first_page(forecast)
    return None


def first_page(forecast: Forecast) -> Alarm:
    """Return the forecast as an alarm."""
    return Alarm(
        forecast.step, forecast.eta_step, forecast.eta_low, forecast.eta_high, forecast.cause
    )


def feed(
    trace: Trace, *, finder: Finder | None = None, with_predecessor: bool = False
) -> Iterator[tuple[Forecaster, Forecast]]:
    """Yield the forecaster with each of its forecasts."""
    row, growth, verdicts = 0, _Growth(), None if finder else list[Verdict]()
    readings = _readings(trace)
    options = dict(trace.options)
    if trace.garbage is not None:
        garbage = trace.garbage
        options["gc_probe"] = lambda: readings[row] - garbage[row]
    forecaster = Forecaster(trace.limit_bytes, **options)
    if with_predecessor:
        forecaster.learn(predecessor=trace.predecessor)
    forecasts = feed_columns(forecaster, trace.columns)
    for row in range(len(trace.columns["step"])):
        forecast = next(forecasts)
        if verdicts is None and finder:
            window = growth.window(row, readings[row])
            if forecast.level != "ok" or forecaster.is_worth_diagnosis:
                window = WINDOW_STEPS
            if window:
                verdicts = finder(trace, row, window)
                forecaster.learn(grows="unknown")
        while verdicts and row >= verdicts[0].row:
            forecaster.learn(**_told(verdicts.pop(0), trace, readings[row]))
        yield forecaster, forecast


class _Growth:
    """Growth for which the agent requests a diagnosis without a forecast."""

    def __init__(self) -> None:
        self._slow = slow_growth_detectors("cuda")
        self._early = early_growth_detectors("cuda")

    def window(self, row: int, reading: int) -> int | None:
        """Return the steps of the diagnosis that a reading requests, None if it doesn't."""
        is_read = row <= EARLY_STEPS and row % EARLY_EVERY == 0
        detectors = [*self._slow, *(self._early if is_read else ())]
        windows = [window for detector, window in detectors if detector.observe((reading,))]
        return min((window or WINDOW_STEPS for window in windows), default=None)


def _told(verdict: Verdict, trace: Trace, held: int) -> dict[str, Any]:
    """Return the forecaster's arguments for a verdict at a row."""
    if verdict.rest is None:
        return {"grows": verdict.grows}
    rest = verdict.rest * (max(_readings(trace)) - held)
    return {"grows": verdict.grows, "growth_end_bytes": round(held + rest)}


def _readings(trace: Trace) -> list[int]:
    return trace.columns.get("allocated_bytes") or trace.columns["device_used_bytes"]


def threshold_90(trace: Trace) -> Alarm | None:
    return next(
        (Alarm(step) for step, used in _used(trace) if used > 0.9 * trace.limit_bytes), None
    )


def predict_linear(trace: Trace) -> Alarm | None:
    """Prometheus: predict_linear(used[15m], 1h) > limit, from the first minute."""
    times = trace.columns["time_s"]
    line = _Line()
    for (step, used), now in zip(_used(trace), times, strict=True):
        line.add(now, used)
        line.forget_before(now - WINDOW_S)
        slope, value, _ = line.fit()
        if now - times[0] >= 60 and value + slope * HORIZON_S > trace.limit_bytes:
            return Alarm(step)
    return None


def least_squares(trace: Trace) -> Alarm | None:
    """Fit a line to the last 100 steps; alarm if R2 > 0.8 and it reaches the limit before the run
    ends.
    """
    line = _Line()
    for step, used in _used(trace):
        line.add(step, used)
        line.forget_before(step - 99)
        slope, value, r2 = line.fit()
        rest = (trace.planned - step) if trace.planned else 2 * step
        if step >= 30 and r2 > 0.8 and slope > 0 and (trace.limit_bytes - value) / slope < rest:
            return Alarm(step, step + max(0.0, (trace.limit_bytes - value) / slope), cause="leak")
    return None


def holt(trace: Trace) -> Alarm | None:
    """Holt's linear trend, alpha 0.1, beta 0.02."""
    level, slope = None, 0.0
    for step, used in _used(trace):
        before = used if level is None else level
        level = used if level is None else 0.1 * used + 0.9 * (level + slope)
        slope = 0.02 * (level - before) + 0.98 * slope
        rest = (trace.planned - step) if trace.planned else 2 * step
        if step > 30 and slope > 1000 and (trace.limit_bytes - level) / slope < rest:
            return Alarm(step, step + max(0.0, (trace.limit_bytes - level) / slope), cause="leak")
    return None


DETECTORS: dict[str, Detector] = {
    "memagent": memagent,
    "memagent, with finder": memagent_with_finder,
    "memagent, with oracle": memagent_with_oracle,
    "memagent, notices": memagent_notices,
    "90 % threshold": threshold_90,
    "predict_linear 15m -> 1h": predict_linear,
    "least squares, R2": least_squares,
    "Holt": holt,
}


WITH_PREDECESSOR: dict[str, Detector] = {
    "memagent, with predecessor": memagent_with_predecessor,
    "memagent, with both": memagent_with_both,
}
"""For runs that have one."""


def _used(trace: Trace) -> zip[tuple[int, float]]:
    columns = trace.columns
    return zip(
        columns["step"],
        columns.get("device_used_bytes") or columns["peak_allocated_bytes"],
        strict=True,
    )


class _Line:
    """Least squares over a sliding window, from sums."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()
        self._sums = [0.0] * 5
        self._origin: tuple[float, float] | None = None

    def add(self, x: float, y: float) -> None:
        self._origin = self._origin or (x, y)
        point = (x - self._origin[0], y - self._origin[1])
        self._points.append(point)
        self._count(point, 1)

    def forget_before(self, x: float) -> None:
        while self._origin and self._points[0][0] < x - self._origin[0]:
            self._count(self._points.popleft(), -1)

    def fit(self) -> tuple[float, float, float]:
        """Return slope, value at the newest point, and R2."""
        n = len(self._points)
        x, y, xx, xy, yy = self._sums
        vx, vxy, vy = n * xx - x * x, n * xy - x * y, n * yy - y * y
        if n < 2 or vx <= 0 or self._origin is None:
            return 0.0, 0.0, 0.0
        slope = vxy / vx
        value = self._origin[1] + (y - slope * x) / n + slope * self._points[-1][0]
        return slope, value, vxy * vxy / (vx * vy) if vy > 1e-9 * n * abs(yy) + 1 else 0.0

    def _count(self, point: tuple[float, float], sign: int) -> None:
        x, y = point
        for place, value in enumerate((x, y, x * x, x * y, y * y)):
            self._sums[place] += sign * value
