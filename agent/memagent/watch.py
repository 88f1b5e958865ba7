"""A model and its optimizer under watch: hooks in, moments out; components and prediction come from the live objects.

Components change rarely, so they are measured when they do: parameters and buffers at attach, gradients before the first steps,
optimizer state when its shape has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memagent.components import EMPTY, by_device, state_mark
from memagent.estimator.estimate import Estimate
from memagent.estimator.live import predict
from memagent.guard import Guard
from memagent.hooks.phase import Shape, input_size, tensor_shapes, watch_forward
from memagent.hooks.step import Remove, watch_steps
from memagent.leaks.holders import Holder, largest
from memagent.probe.host import HostProbe
from memagent.sampler import Sampler

_GRADIENTS_AT_STEPS = (0, 1, 10)
"""Steps before whose optimizer step gradients are measured: present from the first, all there by the tenth in practice."""

_EARLY_STEPS = 32
_LOOK_EVERY = 16
_LATE_LOOKS = (96, 1_008, 10_000)
"""Optimizer state comes in the first steps; after those it is looked at each so many steps, and measured a few times whatever it looks
like: tensors replaced one for one (offloaded, another dtype) leave no mark."""


class ModelWatch:
    """Drives `sampler` from the hooks of `models` and `optimizers`; `after_step` is called on the training thread."""

    def __init__(
        self,
        models: Sequence[Any],
        optimizers: Sequence[Any],
        sampler: Sampler,
        guard: Guard,
        *,
        phases: bool,
        after_step: Callable[[], None],
    ) -> None:
        self._models, self._optimizers, self._sampler, self._after = models, optimizers, sampler, after_step
        self.prediction: Estimate | None = None
        self._predicted = False
        self._inputs: tuple[Shape, ...] | None = None
        self._state_mark: list[int] = []
        self._measure()
        self._note_context()
        self._removes: list[Remove] = watch_steps(optimizers, guard, before=self._before_step, after=self._after_step)
        if phases:
            self._removes += watch_forward(models, guard, before=self._before_forward, after=self._after_forward)

    def remove(self) -> None:
        """Take every hook out again."""
        while self._removes:
            self._removes.pop()()

    def predict_once(self) -> Estimate | None:
        """The prediction, the first time that the inputs are known (or a step went by without any), else None."""
        if self._predicted or (self._inputs is None and self._sampler.step == 0):
            return None
        self._predicted = True
        track = self._sampler.tracks[0]
        device = track.probe.device
        self.prediction = predict(
            self._models,
            self._optimizers,
            inputs=self._inputs,
            limit_bytes=device.limit_bytes,
            device_kind=device.kind,
            context_bytes=track.probe.context_bytes or 0,
        )
        return self.prediction

    def largest_tensors(self) -> list[Holder]:
        """The largest live tensors, named where the models and optimizers have a name for them."""
        return largest(self._models, self._optimizers)

    def _before_forward(self, training: bool, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if not training:
            self._sampler.enter("eval")
            return
        if self._inputs is None:
            self._inputs = tensor_shapes(arguments, keywords)
        self._sampler.input_size += input_size(arguments, keywords)
        self._sampler.enter("forward")

    def _after_forward(self, training: bool) -> None:
        self._sampler.enter("backward" if training else "data")

    def _before_step(self) -> None:
        self._sampler.enter("optimizer")
        if self._sampler.step in _GRADIENTS_AT_STEPS:
            self._measure()

    def _after_step(self) -> None:
        step = self._sampler.step
        if step < _EARLY_STEPS or step % _LOOK_EVERY == 0:
            mark = state_mark(self._optimizers)
            if mark != self._state_mark or step in _LATE_LOOKS:
                self._state_mark = mark
                self._measure()
        self._sampler.end_step()
        self._after()

    def _measure(self) -> None:
        found = by_device(self._models, self._optimizers)
        devices = (track.probe.device for track in self._sampler.tracks)
        self._sampler.set_components([found.get(_torch_device(device.kind, device.index), EMPTY) for device in devices])

    def _note_context(self) -> None:
        """On a host, what was there before training began and is neither parameters nor buffers: interpreter, libraries, data."""
        for track in self._sampler.tracks:
            if isinstance(track.probe, HostProbe):
                known = sum(value for value in track.components if isinstance(value, int))
                track.probe.context_bytes = max(0, track.floor - known)


def _torch_device(kind: str, index: int) -> str:
    return "cpu" if kind == "host" else f"{kind}:{index}"
