"""A model and its optimizer under watch: hooks in, moments out; components come from the live objects.

Components change rarely, so they are measured when they do: parameters and buffers at attach, gradients before the first steps,
optimizer state when its shape has changed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from memagent.components import EMPTY, distinct, measure_by_device, state_fingerprint
from memagent.diagnostics.console import notify_user
from memagent.diagnostics.error_guard import ErrorGuard
from memagent.hooks.clock import AdaptiveClock, FirstClock
from memagent.hooks.phase import input_size, watch_compiled, watch_forward
from memagent.hooks.step import Remove, StepHooks
from memagent.leaks.largest_tensors import LargeTensor, largest_tensors
from memagent.probe.host import HostProbe
from memagent.sampling.sampler import Sampler

_LOOK_OUTSIDE_AT_STEP = 1
"""A model whose training forward has not been seen by then may be compiled: look for its wrapper. (An evaluation before that, a
preflight's for one, may have called the plain model.)"""
_GRADIENTS_AT_STEPS = (0, 1, 10)
"""Steps before whose optimizer step gradients are measured: present from the first, all there by the tenth in practice."""

_EARLY_STEPS = 32
_LOOK_EVERY = 16
_LATE_LOOKS = (96, 1_008, 10_000)
"""Optimizer state comes in the first steps; after those it is looked at each so many steps, and measured a few times whatever it looks
like: tensors replaced one for one (offloaded, another dtype) leave no mark."""


class ModelInstrumentation:
    """Drives `sampler` from the hooks of models and optimizers; `after_step` is called on the training thread, and so is
    `before_first_step`: the gradients are there, the optimizer's state is not.

    It holds them weakly: what the script lets go of must not stay in memory because of us. `adaptive`: see hooks/clock.py.

    Gradients are looked at on the thread that trains, of optimizers that it has stepped. Once a second thread steps there is no moment
    at which nobody writes them, and they are unknown (None).
    """

    def __init__(
        self,
        sampler: Sampler,
        guard: ErrorGuard,
        *,
        phases: bool,
        after_step: Callable[[], None],
        first_inputs: Callable[[list[Any], list[Any], tuple[Any, ...], dict[str, Any]], None],
        before_first_step: Callable[[], None] = lambda: None,
        adaptive: bool = False,
    ) -> None:
        self._sampler, self._guard, self._phases, self._after = sampler, guard, phases, after_step
        self._model_refs: list[weakref.ref[Any]] = []
        self._optimizer_refs: list[weakref.ref[Any]] = []
        self._first_inputs, self._before_first_step = first_inputs, before_first_step
        self._saw_inputs = False
        self._state_mark: list[int] = []
        self._gradients_at = -1
        self._thread: int | None = None
        self._is_shared = False
        self._stepped: set[int] = set()
        self._unread: set[str] = set()
        self._forwards = 0
        self._phase_before_forward = sampler.phase
        self._forward_removes: list[Remove] = []
        self._steps = StepHooks(
            AdaptiveClock() if adaptive else FirstClock(),
            guard,
            before=self._before_step,
            after=self._after_step,
        )

    @property
    def _models(self) -> list[Any]:
        return [model for reference in self._model_refs if (model := reference()) is not None]

    @property
    def _optimizers(self) -> list[Any]:
        return [
            optimizer
            for reference in self._optimizer_refs
            if (optimizer := reference()) is not None
        ]

    def begin(self, models: Sequence[Any], optimizers: Sequence[Any]) -> None:
        """Watch these. From here on hooks may fire, on any thread."""
        self.extend(models, optimizers)
        self._note_context()

    def extend(self, models: Sequence[Any], optimizers: Sequence[Any]) -> None:
        """Watch these as well; those that are watched already are left alone."""
        known = {id(item) for item in (*self._models, *self._optimizers)}
        models = [model for model in distinct(models) if id(model) not in known]
        optimizers = [optimizer for optimizer in distinct(optimizers) if id(optimizer) not in known]
        self._model_refs = [weakref.ref(model) for model in (*self._models, *models)]
        self._optimizer_refs = [
            weakref.ref(optimizer) for optimizer in (*self._optimizers, *optimizers)
        ]
        for optimizer in optimizers:
            self._stepped.discard(id(optimizer))
            self._steps.add(optimizer)
        if self._phases:
            self._forward_removes += watch_forward(
                models, self._guard, before=self._before_forward, after=self._after_forward
            )
        self._state_mark = []
        if models:
            self._measure()

    def enter(self, phase: str, inputs: tuple[Any, ...] = ()) -> str:
        """The loop goes over to `phase`, with these inputs of the model; returns the phase that ended."""
        before = self._sampler.phase
        if inputs:
            self._note_inputs(inputs, {})
            self._sampler.input_size += input_size(inputs, {})
        self._sampler.enter(phase)
        return before

    def remove(self) -> None:
        """Take every hook out again, after counting what compiled graphs have left to count."""
        with self._guard.section("last steps"):
            self._steps.catch_up()
        self._steps.remove()
        self.unwatch_forward()

    def unwatch_forward(self) -> None:
        """Take the hooks on the models' forward out: somebody else tells the phases, by `enter`."""
        self._phases = False
        while self._forward_removes:
            self._forward_removes.pop()()

    def watched(self) -> tuple[list[Any], list[Any]]:
        """The models and optimizers that are still there."""
        return self._models, self._optimizers

    def largest_tensors(self, error: BaseException | None = None) -> list[LargeTensor]:
        """The largest live tensors, by the names that models, optimizers and the script have for them; also where an `error` ended it."""
        return largest_tensors(
            self._models, self._optimizers, with_gradients=not self._is_shared, error=error
        )

    def _before_forward(
        self, training: bool, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        self._steps.catch_up()
        if not training:
            if self._sampler.phase != "eval":  # else inside another, or after one that raised
                self._phase_before_forward = self._sampler.phase
            self._sampler.enter("eval")
            return
        self._forwards += 1
        if not self._saw_inputs:
            self._note_inputs(arguments, keywords)
        self._sampler.input_size += input_size(arguments, keywords)
        self._sampler.enter("forward")

    def _note_inputs(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Hand on the inputs of the first training forward, or that there were none to be seen."""
        if not self._saw_inputs:
            self._saw_inputs = True
            with self._guard.section("prediction"):
                self._first_inputs(self._models, self._optimizers, arguments, keywords)

    def _after_forward(self, training: bool) -> None:
        self._sampler.enter("backward" if training else self._phase_before_forward)

    def _before_step(self, optimizer: Any) -> None:
        self._note_thread(optimizer)
        step = self._sampler.step
        self._sampler.enter("optimizer")
        if step in _GRADIENTS_AT_STEPS and step != self._gradients_at:
            self._gradients_at = step
            self._measure()
            if step == 0:
                self._before_first_step()

    def _after_step(self, steps: int) -> None:
        step = self._sampler.step
        if step < _EARLY_STEPS or step % _LOOK_EVERY == 0:
            mark = state_fingerprint(self._optimizers)
            if mark != self._state_mark or step in _LATE_LOOKS:
                self._state_mark = mark
                self._measure()
        self._sampler.step += steps - 1
        self._sampler.end_step()
        if self._sampler.step > _LOOK_OUTSIDE_AT_STEP and not self._saw_inputs:
            self._note_inputs((), {})
        if self._sampler.step == _LOOK_OUTSIDE_AT_STEP and not self._forwards and self._phases:
            self._forward_removes += watch_compiled(
                self._models, self._guard, before=self._before_forward, after=self._after_forward
            )
        self._after()

    def _note_thread(self, optimizer: Any) -> None:
        thread = threading.get_ident()
        if thread != self._thread:
            self._is_shared, self._thread = self._thread is not None, thread
        if id(optimizer) not in self._stepped:
            self._stepped.add(id(optimizer))

    def _measure(self) -> None:
        optimizers = self._optimizers
        is_calm = not self._is_shared and self._thread in (None, threading.get_ident())
        waiting = (
            [item for item in optimizers if id(item) not in self._stepped]
            if len(optimizers) > 1
            else []
        )
        found = measure_by_device(self._models, optimizers, busy=waiting if is_calm else None)
        read = [
            _torch_device(track.probe.device.kind, track.probe.device.index)
            for track in self._sampler.tracks
        ]
        self._sampler.set_components(
            [found.get(device, EMPTY) for device in read], with_gradients=is_calm
        )
        self._tell_unread(found.keys() - {*read, "cpu", "meta"})

    def _tell_unread(self, devices: set[str]) -> None:
        """Devices are looked for once, at attach."""
        if devices - self._unread:
            self._unread |= devices
            names = ", ".join(sorted(devices))
            notify_user(
                f"tensors lie on {names}, which is not read: call memagent.attach() after the model has moved there"
            )

    def _note_context(self) -> None:
        """On a host, what was there before training began and is neither parameters nor buffers: interpreter, libraries, data."""
        for track in self._sampler.tracks:
            if isinstance(track.probe, HostProbe):
                known = sum(value for value in track.components if isinstance(value, int))
                track.probe.context_bytes = max(0, track.floor - known)


def _torch_device(kind: str, index: int) -> str:
    return "cpu" if kind == "host" else f"{kind}:{index}"
