"""Shows a run's memory in trackers, by points that a thread writes every few seconds."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memagent.diagnostics import notify_user, outlast_memory_errors
from memagent.local_forecast.monitor import warning_text
from memagent.mirror.aggregate import Point, PointWindow
from memagent.wire.columns import Value
from memagent.wire.messages import Device, Risk

if TYPE_CHECKING:
    from memagent.mirror.trackers import Tracker

EVERY_S = 5.0
CLOSE_S = 2.0
"""Time for a tracker to close; then its thread is abandoned."""
_MAX_WAITING_WARNINGS = 50


@dataclass(frozen=True)
class _Warning:
    title: str
    text: str
    step: int
    is_critical: bool


class Mirror:
    """Shows a rank's samples in `trackers`; without any, nothing happens and no thread starts.

    `get_risks` returns the newest forecasts; it is called for each point. roots: see
    `ForecastMonitor`.
    """

    def __init__(
        self,
        trackers: Sequence[Tracker],
        devices: Sequence[Device],
        rank: int,
        *,
        get_risks: Callable[[], Sequence[Risk]] = tuple,
        roots: Sequence[str] = (),
    ) -> None:
        self._trackers = trackers
        self._devices = {device.id: device for device in devices}
        prefix = f"rank{rank}/" if rank else ""
        self._labels = {device.id: prefix + series_label(device) for device in devices}
        self._get_risks = get_risks
        self._roots = roots
        self._predicted_bytes: int | None = None
        self._window = PointWindow()
        self._window_lock = threading.Lock()
        self._warnings: deque[_Warning] = deque(maxlen=_MAX_WAITING_WARNINGS)
        self._reported_trackers: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=outlast_memory_errors, args=(self._work,), name="memagent-mirror", daemon=True
        )
        if trackers:
            self._thread.start()

    def observe(self, stream: str, columns: Mapping[str, Sequence[Value]]) -> None:
        """Add rows of a device, on the collector's thread."""
        if self._trackers and stream in self._labels:
            with self._window_lock:
                self._window.add(self._labels[stream], columns)

    def note_prediction(self, peak_bytes: int) -> None:
        """Show the predicted peak of the first device from the next point on; on any thread."""
        self._predicted_bytes = peak_bytes

    def note_risk(self, risk: Risk) -> None:
        """Show the warning of a new or worse risk; on any thread."""
        device = self._devices.get(risk.device)
        if device is not None:
            text = warning_text(risk, device.name, roots=self._roots)
            self.warn(text, step=risk.step, is_critical=risk.level == "critical")

    def warn(self, text: str, *, step: int, is_critical: bool) -> None:
        """Show a warning, the first line as its title; on any thread."""
        title, _, rest = text.partition("\n")
        self._warnings.append(_Warning(title, rest, step, is_critical))

    def close(self) -> None:
        """Write what is left, within CLOSE_S."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while not self._stop.wait(EVERY_S):
            self._write()
        self._write()
        for tracker in self._trackers:
            self._call(tracker, tracker.close)

    def _write(self) -> None:
        with self._window_lock:
            window, self._window = self._window, PointWindow()
        point = window.point()
        if point is not None:
            point = Point(point.step, point.time_s, {**point.values, **self._forecast_values()})
        warnings = [self._warnings.popleft() for _ in range(len(self._warnings))]
        for tracker in self._trackers:
            if point is not None:
                self._call(tracker, tracker.write, point)
            for warning in warnings:
                self._call(
                    tracker,
                    tracker.warn,
                    warning.title,
                    warning.text,
                    step=warning.step,
                    is_critical=warning.is_critical,
                )

    def _forecast_values(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for risk in self._get_risks():
            name = self._labels.get(risk.device, risk.device)
            values[f"{name}/oom_probability"] = risk.oom_probability
            if risk.eta_step is not None:
                values[f"{name}/oom_eta_step"] = risk.eta_step
        if self._predicted_bytes is not None:
            first = next(iter(self._labels.values()))
            values[f"{first}/predicted_peak_bytes"] = self._predicted_bytes
        return values

    def _call(
        self, tracker: Tracker, method: Callable[..., None], *arguments: Any, **keywords: Any
    ) -> None:
        try:
            method(*arguments, **keywords)
        except Exception as error:  # noqa: BLE001 - a tracker's server must not end the run
            if tracker.name not in self._reported_trackers:
                self._reported_trackers.add(tracker.name)
                notify_user(
                    f"some data could not be mirrored to {tracker.name} (reported once): "
                    f"{type(error).__name__}: {error}"
                )


def series_label(device: Device) -> str:
    """Return a device's part of a series' name: `cuda0`, `host`."""
    return device.kind if device.kind == "host" else f"{device.kind}{device.index}"
