"""From rows to trackers: summed up where they come by, written every few seconds on a thread of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memagent.diagnostics.console import notify_user
from memagent.local_forecast.monitor import warning_text
from memagent.mirror.aggregate import Point, Window
from memagent.mirror.trackers import Tracker
from memagent.wire.columns import Value
from memagent.wire.messages import Device, Risk

EVERY_S = 5.0
CLOSE_S = 2.0
"""A tracker that needs longer for its last words is left alone."""
_MOST_WARNINGS = 50


@dataclass(frozen=True)
class Warned:
    """A warning on its way. `text` goes on where `title` ends."""

    title: str
    text: str
    step: int
    is_critical: bool


class Mirror:
    """Shows a rank's samples to `trackers`; with none of them nothing happens and no thread is started.

    `risks` and `predicted_bytes` give the newest forecasts, and the predicted peak of the first device, whenever a point is made.
    """

    def __init__(
        self,
        trackers: Sequence[Tracker],
        devices: Sequence[Device],
        rank: int,
        *,
        risks: Callable[[], Sequence[Risk]] = tuple,
        predicted_bytes: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._trackers, self._devices = trackers, {device.id: device for device in devices}
        prefix = f"rank{rank}/" if rank else ""
        self._labels = {device.id: prefix + label(device) for device in devices}
        self._risks, self._predicted_bytes = risks, predicted_bytes
        self._window, self._lock = Window(), threading.Lock()
        self._warnings: deque[Warned] = deque(maxlen=_MOST_WARNINGS)
        self._told: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="memagent-mirror", daemon=True)
        if trackers:
            self._thread.start()

    def observe(self, stream: str, columns: Mapping[str, Sequence[Value]]) -> None:
        """Rows of a device, on the collector's thread."""
        if self._trackers and stream in self._labels:
            with self._lock:
                self._window.add(self._labels[stream], columns)

    def note_risk(self, risk: Risk) -> None:
        """A new or worse risk; on any thread."""
        device = self._devices.get(risk.device)
        if device is not None:
            self.warn(
                warning_text(risk, device.name),
                step=risk.step,
                is_critical=risk.level == "critical",
            )

    def warn(self, text: str, *, step: int, is_critical: bool) -> None:
        """The first line is the title; on any thread."""
        title, _, rest = text.partition("\n")
        self._warnings.append(Warned(title, rest, step, is_critical))

    def close(self) -> None:
        """Write what is left; takes CLOSE_S at most."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while not self._stop.wait(EVERY_S):
            self._write()
        self._write()
        for tracker in self._trackers:
            self._safely(tracker, tracker.close)

    def _write(self) -> None:
        with self._lock:
            window, self._window = self._window, Window()
        point = self._with_outlook(window.point())
        warnings = [self._warnings.popleft() for _ in range(len(self._warnings))]
        for tracker in self._trackers:
            if point is not None:
                self._safely(tracker, tracker.write, point)
            for one in warnings:
                self._safely(
                    tracker,
                    tracker.warn,
                    one.title,
                    one.text,
                    step=one.step,
                    is_critical=one.is_critical,
                )

    def _with_outlook(self, point: Point | None) -> Point | None:
        """Forecasts and prediction beside the samples."""
        if point is None:
            return None
        values = dict(point.values)
        for risk in self._risks():
            name = self._labels.get(risk.device, risk.device)
            values[f"{name}/oom_probability"] = risk.oom_probability
            if risk.eta_step is not None:
                values[f"{name}/oom_eta_step"] = risk.eta_step
        first, predicted = next(iter(self._labels.values())), self._predicted_bytes()
        if predicted is not None:
            values[f"{first}/predicted_peak_bytes"] = predicted
        return Point(point.step, point.time_s, values)

    def _safely(
        self, tracker: Tracker, call: Callable[..., None], *arguments: Any, **keywords: Any
    ) -> None:
        try:
            call(*arguments, **keywords)
        except Exception as error:  # noqa: BLE001 - somebody else's code, at somebody else's server: the run goes on
            if tracker.name not in self._told:
                self._told.add(tracker.name)
                notify_user(
                    f"the mirror in {tracker.name} lacks something (told once): {type(error).__name__}: {error}"
                )


def label(device: Device) -> str:
    """A device in the name of a series: `cuda0`, `host`."""
    return device.kind if device.kind == "host" else f"{device.kind}{device.index}"
