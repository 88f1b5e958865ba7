"""The forecaster inside the training process: its hints, its warnings, and what follows from them.

Hints come from the script, its optimizers, the estimator and a preflight. The local forecaster gets
them directly, the server's by events (docs/wire.md).
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent.diagnostics import ErrorGuard, notify_user
from memagent.errors import SettingError
from memagent.estimator.formula.state_sizes import missing_state_bytes
from memagent.forecast import Forecast, Hints
from memagent.forecast.predecessor import Predecessor
from memagent.forecast.types import Growing
from memagent.local_forecast.monitor import ForecastMonitor, SuspectSource
from memagent.probe import Probe, torch_device_name
from memagent.probe.detached import forks_wait
from memagent.sampling.bus import EventSink
from memagent.sampling.sampler import Sampler
from memagent.wire.codec import to_builtins
from memagent.wire.messages import Event, Risk, RunStart

if TYPE_CHECKING:
    from memagent.estimator.estimate import Estimate
    from memagent.preflight import Preflight, PreflightRequest

_CONFIG_HINTS = ("epoch_steps", "max_input_size")
_MIN_STATE_SHARE = 0.05
"""Share of the limit below which optimizer state is not worth an event: it decides nothing."""
MAX_GC_SHARE = 0.001
"""Share of the run's time that requested garbage collections may take."""


class LocalForecast:
    """One rank's forecasts.

    `events` gets what the server's forecaster has to know. `on_risk` is the script's callback,
    called on the training thread. `on_growth`, `take_suspects`, `roots`: see `ForecastMonitor`.
    """

    def __init__(
        self,
        rank: int,
        sampler: Sampler,
        guard: ErrorGuard,
        events: EventSink,
        *,
        total_steps: int | None,
        page_cost: float | None,
        on_risk: Callable[[Risk], None] | None,
        on_growth: Callable[[Forecast], None],
        take_suspects: SuspectSource = lambda _: (),
        roots: Sequence[str] = (),
    ) -> None:
        self._sampler = sampler
        self._guard = guard
        self._events = events
        self._on_risk = on_risk
        self._is_first_rank = rank == 0
        self._gc_request = GarbageCollectionRequest()
        self._pending_risks: list[Risk] = []
        self._hints = Hints(total_steps=total_steps)
        self.monitor = ForecastMonitor(
            rank,
            [probe.device for probe in self._probes],
            self._hints,
            gc_probe=self._request_collection,
            page_cost=page_cost,
            on_growth=on_growth,
            take_suspects=take_suspects,
            roots=roots,
        )
        self.monitor.add_risk_listener(self._note_risk)

    @property
    def _probes(self) -> list[Probe]:
        return [track.probe for track in self._sampler.tracks]

    # -- on the training thread ------------------------------------------------------------------

    def begin(self, optimizers: Sequence[Any], config: Mapping[str, Any]) -> None:
        """Take the hints of the script's config and of its optimizers, before the first step."""
        missing = missing_state_bytes(optimizers)
        by_probe = [
            (probe, missing.get(torch_device_name(probe.device), 0)) for probe in self._probes
        ]
        self._learn(
            {"optimizer_state_bytes": {probe.device.id: size for probe, size in by_probe if size}}
        )
        is_large = any(
            size > _MIN_STATE_SHARE * (probe.limit_bytes or 0) for probe, size in by_probe
        )
        from_config = {name: config[name] for name in _CONFIG_HINTS if name in config}
        if self._learn(from_config) or is_large:
            self._emit_hints()

    def before_first_step(self) -> None:
        """Check the room for the optimizer's state: its gradients exist, its state doesn't."""
        self.monitor.check_state_fits(
            {probe.device.id: probe.used_bytes() for probe in self._probes}
        )
        if self._pending_risks:
            self._call_on_risk()

    def after_step(self) -> None:
        if self._gc_request.is_pending:
            with self._guard.section("garbage collection"):
                self._gc_request.collect()
            if self._gc_request.is_pending:
                self._sampler.request_work()
        if self._pending_risks:
            self._call_on_risk()

    def expect(self, **numbers: int | None) -> None:
        """Take hints of the script. Raises SettingError for anything but numbers of 1 or more."""
        hints = {
            name: _checked_number(name, value)
            for name, value in numbers.items()
            if value is not None
        }
        if self._learn(hints):
            self._emit_hints()

    def preflight(
        self, request: PreflightRequest, models: Sequence[Any], optimizers: Sequence[Any]
    ) -> Preflight:
        """Try an evaluation and a checkpoint now, report the result, and take it as a hint."""
        from memagent.preflight.runner import run_preflight

        before = self._sampler.set_user_phase("preflight")
        try:
            result = run_preflight(
                request,
                self._probes,
                models,
                optimizers,
                step=self._sampler.step,
                prediction=self.monitor.prediction,
                mark=lambda: self._sampler.set_user_phase("preflight"),
            )
        finally:
            self._sampler.set_user_phase(before)
        if self._is_first_rank or result.fits is False:  # ranks are mostly equal: one line will do
            notify_user(result.verdict())
        data = result.to_data()
        self._learn(data)
        self._emit("preflight", data)
        return result

    def _call_on_risk(self) -> None:
        while self._pending_risks:
            risk = self._pending_risks.pop(0)
            if self._on_risk is not None:
                with self._guard.section("on_risk"):
                    self._on_risk(risk)

    # -- on any thread ---------------------------------------------------------------------------

    def _request_collection(self) -> None:
        self._gc_request.request()
        self._sampler.request_work()

    def _note_risk(self, risk: Risk) -> None:
        self._pending_risks.append(risk)
        self._sampler.request_work()

    def note_prediction(self, prediction: Estimate) -> None:
        """Take the estimator's result, a bound excepted. The server gets it separately."""
        self.monitor.prediction = prediction
        device = self._probes[0].device.id
        self._learn({"predicted_peak_bytes": {device: prediction.peak_allocated_bytes}})

    def note_growing(self, growing: Growing, rest_bytes: int | None = None) -> None:
        """Take from the leak finder what keeps the growing memory of the training device.

        rest_bytes: what a buffer takes until it's full. The forecaster gets the sum with what is
        held now, which later samples don't change.
        """
        probe = self._probes[0]
        data: dict[str, dict[str, Any]] = {"grows": {probe.device.id: growing}}
        if rest_bytes is not None:
            end = probe.used_bytes() + rest_bytes
            data["growth_end_bytes"] = {probe.device.id: end}
        if self._learn(data):
            self._emit_hints()

    def search_predecessor(self, folder: Path, start: RunStart) -> None:
        """Search the run files of a folder for the predecessor, on another thread."""

        def search() -> None:
            with self._guard.section("predecessor"):
                with forks_wait():  # not before the first step
                    from memagent.delivery.local_predecessor import find_local_predecessor
                predecessor = find_local_predecessor(folder, start)
                if predecessor is not None:
                    self.note_predecessor(predecessor)

        threading.Thread(target=search, name="memagent-predecessor", daemon=True).start()

    def note_predecessor(self, predecessor: Predecessor) -> None:
        """Take the last run of the same program, for the training device."""
        if self._learn({"predecessor": {self._probes[0].device.id: to_builtins(predecessor)}}):
            self._emit_hints()

    def _learn(self, data: Mapping[str, Any]) -> bool:
        """Merge `data` into the hints; return True if they changed."""
        merged = self._hints.merged_with(data)
        if merged == self._hints:
            return False
        self._hints = merged
        self.monitor.set_hints(merged)
        return True

    def _emit_hints(self) -> None:
        self._emit("hints", self._hints.to_data())

    def _emit(self, kind: str, data: dict[str, Any]) -> None:
        self._events.emit(Event(kind=kind, step=self._sampler.step, time_s=time.time(), data=data))


class GarbageCollectionRequest:
    """Collects garbage on the training thread when a forecaster suspects a leak.

    1. The forecaster requests a collection on another thread and doesn't wait: the floor of the
       samples after the next step shows the effect (rule 3 of `memagent.forecast.gc_check`).
    2. The collection runs at the next step boundary, on the training thread. It never runs while a
       CUDA graph is captured there: freeing a tensor would end the capture with an error.
    3. The first collection is always allowed, since the alternative is a false page. Further ones
       wait until all of them together take less than MAX_GC_SHARE of the run's time.
    """

    def __init__(self) -> None:
        self.is_pending = False
        self.collections = 0
        self._started_at = time.monotonic()
        self._spent_s = 0.0

    def request(self) -> None:
        """Request a collection, unless the budget is spent: a `GcProbe`."""
        self.is_pending = self._spent_s <= MAX_GC_SHARE * (time.monotonic() - self._started_at)

    def collect(self) -> None:
        """Collect garbage now, between two steps on the training thread."""
        torch = sys.modules.get("torch")
        cuda = torch.cuda if torch is not None and torch.cuda.is_initialized() else None
        if cuda is not None and cuda.is_current_stream_capturing():
            return
        self.is_pending = False
        started_at = time.monotonic()
        gc.collect()
        self._spent_s += time.monotonic() - started_at
        self.collections += 1


def _checked_number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < 2**62:
        raise SettingError(f"{name} must be a number of 1 or more, got {value!r}.")
    return int(value)
