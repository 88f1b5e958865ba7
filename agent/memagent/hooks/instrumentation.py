"""Connects a model and its optimizer to the sampler: hooks in, phases, steps and components out.

Components change rarely, so they are measured when they do: parameters and buffers at attach,
gradients before the first steps, optimizer state when its fingerprint has changed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from memagent.components import EMPTY, distinct, measure_by_device, state_fingerprint
from memagent.diagnostics import ErrorGuard, notify_user
from memagent.hooks.clock import AdaptiveClock, FirstClock
from memagent.hooks.dispatcher import Remove, step_dispatcher
from memagent.hooks.phase import hook_compiled_forward, hook_forward, input_size
from memagent.hooks.step import StepHooks
from memagent.probe import torch_device_name
from memagent.probe.host import HostProbe
from memagent.sampling.sampler import Sampler

if TYPE_CHECKING:
    from memagent.leaks.largest_tensors import LargeTensor

OnInputs = Callable[[list[Any], list[Any], tuple[Any, ...], dict[str, Any]], None]

_COMPILED_CHECK_STEP = 1
"""Step at which to look for the compiled wrapper of a model that had no training forward so far.

An earlier evaluation, a preflight's for one, may have called the plain model."""
_GRADIENT_STEPS = (0, 1, 10)
"""Steps before whose optimizer step gradients are measured: in practice all exist by the tenth."""
_EARLY_STEPS = 32
_STATE_CHECK_EVERY = 16
_STATE_MEASURE_STEPS = (96, 1_000, 10_000)
"""Optimizer state is created in the first steps: its fingerprint is checked in each of them, later
every 16, or where repeated steps are read in full. After three late steps the state is measured in
any case: replacing tensors one for one (offloading, another dtype) doesn't change the fingerprint.
"""


class ModelInstrumentation:
    """Drives `sampler` from the hooks of models and optimizers.

    All callbacks run on the training thread. `on_first_inputs` is called before the first training
    forward, `before_first_step` when gradients exist and the optimizer's state doesn't. Step
    listeners are called after steps with requested work. `adaptive`: see hooks/clock.py.

    Models and optimizers are held weakly: the agent must not keep alive what the script deletes.

    Gradients are read on the training thread, of optimizers that have stepped there. Once a second
    thread steps, any moment may be in the middle of a write, and gradients are unknown (None).
    """

    def __init__(
        self,
        sampler: Sampler,
        guard: ErrorGuard,
        *,
        phases: bool,
        adaptive: bool = False,
        on_first_inputs: OnInputs | None = None,
        before_first_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.training_thread: int | None = None
        """Identity of the thread that made the newest step of the run."""
        self._sampler = sampler
        self._guard = guard
        self._phases = phases
        self._on_first_inputs = on_first_inputs
        self._before_first_step = before_first_step
        self._step_listeners: tuple[Callable[[], None], ...] = ()
        self._model_refs: list[weakref.ref[Any]] = []
        self._optimizer_refs: list[weakref.ref[Any]] = []
        self._has_inputs = False
        self._forwards = 0
        self._phase_before_eval = sampler.phase
        self._state_fingerprint: list[int] = []
        self._measure_steps = list(_STATE_MEASURE_STEPS)
        self._gradients_measured_at = -1
        self._stepping_thread: int | None = None
        self._has_several_threads = False
        self._stepped: set[int] = set()
        self._reported_devices: set[str] = set()
        self._forward_removes: list[Remove] = []
        self._step_hooks = StepHooks(
            AdaptiveClock() if adaptive else FirstClock(),
            guard,
            before=self._before_step,
            after=self._after_step,
            sampler=sampler,
            work=self._call_listeners,
        )

    def add_step_listeners(self, *listeners: Callable[[], None]) -> None:
        """Call `listeners` in this order after each step with requested work."""
        self._step_listeners = (*self._step_listeners, *listeners)

    def begin(self, models: Sequence[Any], optimizers: Sequence[Any]) -> None:
        """Install hooks on these. From here on they may fire, on any thread."""
        self.extend(models, optimizers)
        # On a host, what existed before training and is neither parameters nor buffers is context:
        # interpreter, libraries, data.
        for track in self._sampler.tracks:
            if isinstance(track.probe, HostProbe):
                component_bytes = sum(value for value in track.components if isinstance(value, int))
                track.probe.context_bytes = max(0, track.floor - component_bytes)

    def extend(self, models: Sequence[Any], optimizers: Sequence[Any]) -> None:
        """Install hooks on these too, except on those that have them."""
        old_models, old_optimizers = self.live_objects()
        ids = {id(item) for item in (*old_models, *old_optimizers)}
        models = [model for model in distinct(models) if id(model) not in ids]
        optimizers = [optimizer for optimizer in distinct(optimizers) if id(optimizer) not in ids]
        self._model_refs = [weakref.ref(model) for model in (*old_models, *models)]
        self._optimizer_refs = [weakref.ref(item) for item in (*old_optimizers, *optimizers)]
        for optimizer in optimizers:
            self._stepped.discard(id(optimizer))  # of a deleted object, whose id is used again
            self._step_hooks.add(optimizer)
        if self._phases:
            self._forward_removes += hook_forward(
                models,
                self._guard,
                before=self._before_forward,
                after=self._after_forward,
                sampler=self._sampler,
            )
        # an empty fingerprint differs from any: the next step measures again
        self._state_fingerprint = []
        if models:
            self._measure()

    def enter(self, phase: str, inputs: tuple[Any, ...] = ()) -> str:
        """Change to `phase`, with these inputs of the model; return the phase that ended."""
        before = self._sampler.phase
        if inputs:
            self._note_first_inputs(inputs, {})
            self._sampler.input_size += input_size(inputs, {})
        self._sampler.set_phase(phase)
        return before

    def remove(self) -> None:
        """Remove every hook, after counting the steps of compiled graphs."""
        with self._guard.section("last steps"):
            self._step_hooks.catch_up()
        self._step_hooks.remove()
        self.remove_forward_hooks()

    def remove_forward_hooks(self) -> None:
        """Remove the hooks on the models' forward: phases are reported by `enter`."""
        self._phases = False
        while self._forward_removes:
            self._forward_removes.pop()()

    def live_objects(self) -> tuple[list[Any], list[Any]]:
        """Return the models and optimizers that still exist."""
        models = [model for ref in self._model_refs if (model := ref()) is not None]
        optimizers = [item for ref in self._optimizer_refs if (item := ref()) is not None]
        return models, optimizers

    def monitors(self, optimizers: Sequence[Any]) -> bool:
        """Return True if one of `optimizers` has hooks of this run."""
        monitored = self.live_objects()[1]
        return any(item is optimizer for item in monitored for optimizer in optimizers)

    def largest_tensors(self, error: BaseException | None = None) -> list[LargeTensor]:
        """Return the largest live tensors, by their names in models, optimizers and the script.

        With an `error`, tensors of the functions that it ended count too.
        """
        from memagent.leaks.largest_tensors import largest_tensors

        models, optimizers = self.live_objects()
        with_gradients = not self._has_several_threads
        return largest_tensors(models, optimizers, with_gradients=with_gradients, error=error)

    def _before_forward(
        self, training: bool, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        if step_dispatcher().compiled is not None:
            self._step_hooks.catch_up()
        if not training:
            if self._sampler.phase != "eval":  # else nested, or after a forward that raised
                self._phase_before_eval = self._sampler.phase
            self._sampler.set_phase("eval")
            return
        self._forwards += 1
        if not self._has_inputs:
            self._note_first_inputs(arguments, keywords)
        self._sampler.begin_forward(input_size(arguments, keywords))

    def _after_forward(self, training: bool) -> None:
        self._sampler.set_phase("backward" if training else self._phase_before_eval)

    def _note_first_inputs(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Report the inputs of the first training forward; none if no forward was observed."""
        if not self._has_inputs:
            self._has_inputs = True
            if self._on_first_inputs is not None:
                with self._guard.section("prediction"):
                    self._on_first_inputs(*self.live_objects(), arguments, keywords)

    def _before_step(self, optimizer: Any) -> None:
        thread = threading.get_ident()
        if thread != self._stepping_thread:
            self._has_several_threads = self._stepping_thread is not None
            self._stepping_thread = thread
        self._stepped.add(id(optimizer))
        step = self._sampler.step
        self._sampler.set_phase("optimizer")
        if step in _GRADIENT_STEPS and step != self._gradients_measured_at:
            self._gradients_measured_at = step
            self._measure()
            if step == 0:
                self._before_first_step()

    def _after_step(self, steps: int) -> None:
        self.training_thread = threading.get_ident()
        sampler = self._sampler
        step = sampler.step
        if step < _EARLY_STEPS or step % _STATE_CHECK_EVERY == 0:
            self._check_state(step)
        if steps > 1:
            sampler.count_late(steps - 1)
        sampler.end_step()
        if not self._has_inputs or sampler.step == _COMPILED_CHECK_STEP:
            self._look_for_forward()
        if sampler.has_work:
            self._call_listeners()

    def _check_state(self, step: int) -> None:
        fingerprint = state_fingerprint(self.live_objects()[1])
        is_late = bool(self._measure_steps) and step >= self._measure_steps[0]
        if fingerprint != self._state_fingerprint or is_late:
            self._state_fingerprint = fingerprint
            self._measure_steps = [late for late in self._measure_steps if late > step]
            self._measure()

    def _call_listeners(self) -> None:
        self._sampler.has_work = False
        for listener in self._step_listeners:
            listener()

    def _look_for_forward(self) -> None:
        # later than the check below, whose hooks may still see a forward with inputs
        if self._sampler.step > _COMPILED_CHECK_STEP and not self._has_inputs:
            self._note_first_inputs((), {})
        if self._sampler.step == _COMPILED_CHECK_STEP and not self._forwards and self._phases:
            self._forward_removes += hook_compiled_forward(
                self.live_objects()[0],
                self._guard,
                before=self._before_forward,
                after=self._after_forward,
                sampler=self._sampler,
            )

    def _measure(self) -> None:
        models, optimizers = self.live_objects()
        is_training_thread = self._stepping_thread in (None, threading.get_ident())
        can_read_gradients = not self._has_several_threads and is_training_thread
        # Several optimizers may be stepped by several threads: those that haven't stepped on this
        # one may be in the middle of a write elsewhere.
        busy = [item for item in optimizers if id(item) not in self._stepped]
        # with one optimizer no other thread steps, or gradients are not read at all
        if len(optimizers) == 1:
            busy = []
        sizes = measure_by_device(models, optimizers, busy=busy if can_read_gradients else None)
        monitored = [torch_device_name(track.probe.device) for track in self._sampler.tracks]
        self._sampler.set_components(
            [sizes.get(device, EMPTY) for device in monitored], with_gradients=can_read_gradients
        )
        # host tensors are part of the process's memory, and meta tensors have no storage
        unmonitored = sizes.keys() - {*monitored, "cpu", "meta"} - self._reported_devices
        if unmonitored:
            self._reported_devices |= unmonitored
            notify_user(
                f"Tensors found on {', '.join(sorted(unmonitored))}, which is not monitored. "
                "Call memagent.attach() after moving the model."
            )
