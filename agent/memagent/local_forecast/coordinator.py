"""What the process itself knows of its future: the local forecaster, all that it is told, and what follows on the training thread.

Hints come from the script, its optimizers, the estimator and a preflight. Ours is told at once, the server's by events (docs/wire.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memagent.diagnostics.console import notify_user
from memagent.diagnostics.error_guard import ErrorGuard
from memagent.errors import SettingError
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.from_model import missing_state_bytes
from memagent.forecast import Forecast, Hints
from memagent.local_forecast.gc_request import GarbageCollectionRequest
from memagent.local_forecast.monitor import ForecastMonitor
from memagent.preflight import Preflight, Request, try_out
from memagent.probe import Probe
from memagent.sampling.sampler import Sampler
from memagent.wire.messages import Device, Event, Risk

_SAID_IN_CONFIG = ("epoch_steps", "max_input_size")
_WORTH_TELLING = 0.05
"""Optimizer state below this share of the limit decides nothing: no event for it."""


class LocalForecast:
    """One rank's. `add_event` takes what is for the server; `prediction` gives the estimator's newest answer; `show_risk` gets each
    risk at once, on any thread."""

    def __init__(
        self,
        rank: int,
        sampler: Sampler,
        guard: ErrorGuard,
        *,
        total_steps: int | None,
        on_risk: Callable[[Risk], None] | None,
        add_event: Callable[[Event], None],
        prediction: Callable[[], Estimate | None],
        on_suspicion: Callable[[Forecast], None] = lambda _: None,
        show_risk: Callable[[Risk], None] = lambda _: None,
    ) -> None:
        self._show_risk = show_risk
        self._sampler, self._guard, self._on_risk = sampler, guard, on_risk
        self._add_event, self._prediction = add_event, prediction
        self._is_first, self._sweep = rank == 0, GarbageCollectionRequest()
        self._risks: list[Risk] = []
        self._hints = Hints(total_steps=total_steps)
        self.outlook = ForecastMonitor(
            rank,
            [probe.device for probe in self._probes],
            self._hints,
            self.note_risk,
            gc_probe=self._sweep.ask,
            prediction=prediction,
            on_suspicion=on_suspicion,
        )

    @property
    def _probes(self) -> list[Probe]:
        return [track.probe for track in self._sampler.tracks]

    # -- on the training thread ---------------------------------------------------------------------------------------

    def begin(self, optimizers: Sequence[Any], config: Mapping[str, Any]) -> None:
        """What the script's config and its optimizers say before the first step."""
        state = missing_state_bytes(optimizers)
        coming = {probe.device.id: state.get(_place(probe.device), 0) for probe in self._probes}
        said = {name: config[name] for name in _SAID_IN_CONFIG if name in config}
        self._learn(
            {"optimizer_state_bytes": {device: size for device, size in coming.items() if size}}
        )
        is_large = any(
            coming[probe.device.id] > _WORTH_TELLING * (probe.limit_bytes or 0)
            for probe in self._probes
        )
        if self._learn(said) or is_large:
            self._tell_server()

    def before_first_step(self) -> None:
        """The gradients are there, the optimizer's state is not."""
        self.outlook.expect_state({probe.device.id: probe.used_bytes() for probe in self._probes})
        if self._risks:
            self._hand_over_risks()

    def after_step(self) -> None:
        if self._sweep.is_asked:
            with self._guard.section("collecting garbage"):
                self._sweep.collect()
        if self._risks:
            self._hand_over_risks()

    def expect(self, **numbers: int | None) -> None:
        """Take what the script says is true. Raises SettingError for what is no number of 1 or more."""
        if self._learn(
            {name: _whole(name, value) for name, value in numbers.items() if value is not None}
        ):
            self._tell_server()

    def try_out(
        self, request: Request, models: Sequence[Any], optimizers: Sequence[Any]
    ) -> Preflight:
        """Try evaluation and checkpoint now, tell what was found, and believe it."""
        before = self._sampler.hold("preflight")
        try:
            found = try_out(
                request,
                self._probes,
                models,
                optimizers,
                step=self._sampler.step,
                prediction=self._prediction(),
                cut=lambda: self._sampler.hold("preflight"),
            )
        finally:
            self._sampler.hold(before)
        if (
            self._is_first or found.fits is False
        ):  # ranks are mostly alike: one line is enough where all is well
            notify_user(found.verdict())
        data = found.to_data()
        self._learn(data)
        self._add_event(
            Event(kind="preflight", step=self._sampler.step, time_s=time.time(), data=data)
        )
        return found

    def _hand_over_risks(self) -> None:
        while self._risks:
            risk = self._risks.pop(0)
            if self._on_risk is not None:
                with self._guard.section("on_risk"):
                    self._on_risk(risk)

    # -- on any thread ------------------------------------------------------------------------------------------------

    def note_risk(self, risk: Risk) -> None:
        self._risks.append(risk)
        self._show_risk(risk)

    def note_prediction(self, prediction: Estimate) -> None:
        """The server has it too: predictions travel by themselves."""
        self._learn(
            {"predicted_peak_bytes": {self._probes[0].device.id: prediction.peak_allocated_bytes}}
        )

    def _learn(self, data: Mapping[str, Any]) -> bool:
        """Whether that was news."""
        told = self._hints.merged_with(data)
        if told == self._hints:
            return False
        self._hints = told
        self.outlook.learn(told)
        return True

    def _tell_server(self) -> None:
        self._add_event(
            Event(
                kind="hints",
                step=self._sampler.step,
                time_s=time.time(),
                data=self._hints.to_data(),
            )
        )


def _place(device: Device) -> str:
    """As torch names it."""
    return "cpu" if device.kind == "host" else f"{device.kind}:{device.index}"


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < 2**62:
        raise SettingError(f"{name} is {value!r}: give a number of 1 or more")
    return int(value)
