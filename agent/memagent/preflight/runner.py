"""Runs the tasks of a preflight and adds up the need of each device."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.state_sizes import missing_gradients_bytes, missing_state_bytes
from memagent.hooks.exit import describe_error, status_of
from memagent.hooks.oom_observer import parse_failure
from memagent.preflight.request import PreflightRequest
from memagent.preflight.result import DeviceNeed, Preflight, TaskName, TaskResult
from memagent.preflight.tasks import checkpoint_task, evaluation_task, is_sharded, preserve_state
from memagent.probe import Probe, torch_device_name

POLL_INTERVAL_S = 0.0005
_SHARDED = (
    "parameters are sharded over ranks, and a rank that fails would leave the others waiting: "
    "pass a callable"
)


def run_preflight(
    request: PreflightRequest,
    probes: Sequence[Probe],
    models: Sequence[Any],
    optimizers: Sequence[Any],
    *,
    step: int = 0,
    prediction: Estimate | None = None,
    mark: Callable[[], object] = bool,
) -> Preflight:
    """Try the requested tasks, on the training thread and between two steps.

    Exceptions of a task become part of its result; others (Ctrl-C) pass. Models, buffers and random
    generators stay as they were, and memory taken is released. `mark` is called when a task begins:
    a device's own peak counter counts from the last mark.
    """
    # before any task, whose leftovers would count as held
    used = [probe.used_bytes() for probe in probes]
    others = [_others_bytes(probe) for probe in probes]
    gpus = [probe.device.index for probe in probes if probe.device.kind == "cuda"]
    with preserve_state(models, gpus):
        trials = tuple(_run_tasks(request, probes, models, optimizers, mark))
    if gpus:
        # Cached blocks in the sizes of an evaluation don't fit a training step, and split for it
        # they fit neither.
        sys.modules["torch"].cuda.empty_cache()
    needs = [
        _need(probe, trials, optimizers, held_bytes=held_bytes, others_bytes=others_bytes)
        for probe, held_bytes, others_bytes in zip(probes, used, others, strict=True)
    ]
    if prediction is None or prediction.is_bound:
        needs[0] = replace(needs[0], step_bytes=needs[0].gradients_bytes, step_is_least=True)
    else:
        step_bytes = prediction.peak_allocated_bytes - used[0] - needs[0].optimizer_state_bytes
        needs[0] = replace(needs[0], step_bytes=max(0, step_bytes))
    return Preflight(step, tuple(needs), trials)


def _run_tasks(
    request: PreflightRequest,
    probes: Sequence[Probe],
    models: Sequence[Any],
    optimizers: Sequence[Any],
    mark: Callable[[], object],
) -> Iterator[TaskResult]:
    tasks: list[tuple[TaskName, Any, Callable[[], None]]] = []
    if request.checkpoint:
        task = checkpoint_task(models, optimizers, request.checkpoint)
        tasks.append(("checkpoint", request.checkpoint, task))
    if request.eval_batch is not None:
        tasks.append(("eval", request.eval_batch, evaluation_task(models, request.eval_batch)))
    sharded = is_sharded(models)
    for name, argument, task in tasks:
        mark()
        if sharded and not callable(argument):
            yield TaskResult(name, {}, error=_SHARDED)
        else:
            yield _run_task(name, task, probes)


def _run_task(name: TaskName, task: Callable[[], None], probes: Sequence[Probe]) -> TaskResult:
    room = {probe.device.id: (probe.limit_bytes or 0) - probe.used_bytes() for probe in probes}
    error = None
    requested_bytes = 0
    ran_out = False
    with PeakMonitor(probes) as monitor:
        try:
            task()
        except Exception as failure:  # noqa: BLE001 - an error of the script's code is a result
            ran_out = status_of(failure) == "oom"
            error = describe_error(failure)
            requested_bytes = parse_failure(failure).asked_bytes or 0
    more = monitor.more_bytes()
    if ran_out:
        # The refused request counts too, on the device that had no room for it.
        device = next(
            (name for name in more if more[name] + requested_bytes > room[name]), next(iter(more))
        )
        # it ran out, so the need is above the room in any case
        more[device] = max(more[device] + requested_bytes, room[device] + 1)
    if error is not None:
        gc.collect()  # the frames that the error held, and what they had allocated
    return TaskResult(name, more, ran_out, error)


class PeakMonitor:
    """Measures the peak while a task runs, above where each device began.

    A CUDA device counts its own peak, from the last mark: the phase must have been marked when the
    monitor is entered. Other devices are polled by a thread.
    """

    def __init__(self, probes: Sequence[Probe]) -> None:
        self._probes = probes
        self._before = [0] * len(probes)
        self._peaks = [0] * len(probes)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="memagent-preflight", daemon=True)

    def __enter__(self) -> PeakMonitor:
        self._thread.start()  # first: its stack must not count as growth
        self._before = [probe.used_bytes() for probe in self._probes]
        self._peaks = list(self._before)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._update()
        for index, probe in enumerate(self._probes):
            exact = getattr(probe, "peak_since_mark", None)
            if exact is not None:
                self._peaks[index] = max(self._peaks[index], exact())

    def more_bytes(self) -> dict[str, int]:
        """Return the growth up to the peak, by device id."""
        sizes = zip(self._probes, self._before, self._peaks, strict=True)
        return {probe.device.id: max(0, peak - before) for probe, before, peak in sizes}

    def _poll(self) -> None:
        while not self._stop.is_set():
            self._update()
            time.sleep(POLL_INTERVAL_S)

    def _update(self) -> None:
        self._peaks = [
            # a CUDA device's counter is read once, at the end: no polling next to the task
            peak if hasattr(probe, "peak_since_mark") else max(peak, probe.used_bytes())
            for probe, peak in zip(self._probes, self._peaks, strict=True)
        ]


def _need(
    probe: Probe,
    trials: Sequence[TaskResult],
    optimizers: Sequence[Any],
    *,
    held_bytes: int,
    others_bytes: int,
) -> DeviceNeed:
    device = probe.device.id
    torch_name = torch_device_name(probe.device)
    more = {
        trial.name: trial.more_bytes[device]
        for trial in trials
        if trial.is_conclusive and device in trial.more_bytes
    }
    return DeviceNeed(
        device=device,
        held_bytes=held_bytes,
        limit_bytes=probe.limit_bytes,
        others_bytes=others_bytes,
        optimizer_state_bytes=missing_state_bytes(optimizers).get(torch_name, 0),
        gradients_bytes=missing_gradients_bytes(optimizers).get(torch_name, 0),
        eval_bytes=more.get("eval"),
        checkpoint_bytes=more.get("checkpoint"),
    )


def _others_bytes(probe: Probe) -> int:
    """Return what others hold of a CUDA device's memory, the context included.

    0 if the limit is below the device's memory: it leaves room for them.
    """
    if probe.device.kind != "cuda" or probe.device.limit_source != "device memory":
        return 0
    torch = sys.modules["torch"]
    try:
        free, total = torch.cuda.mem_get_info(probe.device.index)
        return max(0, int(total) - int(free) - int(torch.cuda.memory_reserved(probe.device.index)))
    except (RuntimeError, AttributeError, AssertionError):  # not supported by this build or driver
        return 0
