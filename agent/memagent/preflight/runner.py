"""Makes the trials and adds up what they found."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.from_model import (
    missing_gradients_bytes,
    missing_state_bytes,
    predict,
)
from memagent.hooks.exit import describe_error, status_of
from memagent.hooks.oom_observer import failure_in
from memagent.preflight.peak import PeakMonitor
from memagent.preflight.request import Request
from memagent.preflight.result import Name, Need, Preflight, TaskResult
from memagent.preflight.state_guard import untouched
from memagent.preflight.tasks import evaluation, saving, sharded
from memagent.probe import Probe

_SHARDED = "parameters are sharded over ranks, and a rank that fails would leave the others waiting: give a callable"


def try_out(
    request: Request,
    probes: Sequence[Probe],
    models: Sequence[Any],
    optimizers: Sequence[Any],
    *,
    step: int = 0,
    prediction: Estimate | None = None,
    cut: Callable[[], object] = bool,
) -> Preflight:
    """Try what is asked for, on the thread that trains and between two steps. Raises nothing that a trial raises, but for what is no
    Exception (Ctrl-C); leaves models, buffers and generators as they were and gives back the memory taken. `cut` marks the moment at
    which a trial begins: a device's own counter counts from there."""
    held = [probe.used_bytes() for probe in probes]
    others = [_others_bytes(probe) for probe in probes]
    with untouched(models, [probe.device.index for probe in probes if probe.device.kind == "cuda"]):
        trials = tuple(_trials(request, probes, models, optimizers, cut))
    _give_back(probes)
    needs = [
        _need(probe, trials, optimizers, held_bytes=own, others_bytes=beside)
        for probe, own, beside in zip(probes, held, others, strict=True)
    ]
    estimate = prediction or _least_estimate(probes, models, optimizers)
    if estimate is not None:
        step_bytes = max(
            0, estimate.peak_allocated_bytes - held[0] - needs[0].optimizer_state_bytes
        )
        needs[0] = replace(needs[0], step_bytes=step_bytes, step_is_least=prediction is None)
    return Preflight(step, tuple(needs), trials)


def _need(
    probe: Probe,
    trials: Sequence[TaskResult],
    optimizers: Sequence[Any],
    *,
    held_bytes: int,
    others_bytes: int,
) -> Need:
    device, place = probe.device.id, _torch_device(probe)
    more = {
        trial.name: trial.more_bytes[device]
        for trial in trials
        if trial.tells and device in trial.more_bytes
    }
    return Need(
        device=device,
        held_bytes=held_bytes,
        limit_bytes=probe.limit_bytes,
        others_bytes=others_bytes,
        optimizer_state_bytes=missing_state_bytes(optimizers).get(place, 0),
        gradients_bytes=missing_gradients_bytes(optimizers).get(place, 0),
        eval_bytes=more.get("eval"),
        checkpoint_bytes=more.get("checkpoint"),
    )


def _trials(
    request: Request,
    probes: Sequence[Probe],
    models: Sequence[Any],
    optimizers: Sequence[Any],
    cut: Callable[[], object],
) -> Iterator[TaskResult]:
    asked: list[tuple[Name, Any, Callable[[], None]]] = []
    if request.checkpoint:
        asked.append(
            ("checkpoint", request.checkpoint, saving(models, optimizers, request.checkpoint))
        )
    if request.eval_batch is not None:
        asked.append(("eval", request.eval_batch, evaluation(models, request.eval_batch)))
    is_sharded = sharded(models)
    for name, given, work in asked:
        cut()
        yield (
            TaskResult(name, {}, error=_SHARDED)
            if is_sharded and not callable(given)
            else _try(name, work, probes)
        )


def _try(name: Name, work: Callable[[], None], probes: Sequence[Probe]) -> TaskResult:
    room = {probe.device.id: (probe.limit_bytes or 0) - probe.used_bytes() for probe in probes}
    error, asked, ran_out = None, 0, False
    with PeakMonitor(probes) as watch:
        try:
            work()
        except Exception as failure:  # noqa: BLE001 - whatever the script's own code raises is part of the answer
            ran_out = status_of(failure) == "oom"
            error, asked = describe_error(failure), failure_in(failure).asked_bytes or 0
    more = watch.more_bytes()
    if ran_out:
        more = _beyond(more, room, asked)
    if error is not None:
        gc.collect()  # the frames that the error held, and with them what had been allocated
    return TaskResult(name, more, ran_out, error)


def _beyond(more: dict[str, int], room: dict[str, int], asked: int) -> dict[str, int]:
    """What would have been needed at least, where `asked` bytes were refused: on the device that had no room for them."""
    device = next((each for each in more if more[each] + asked > room[each]), next(iter(more)))
    return {**more, device: max(more[device] + asked, room[device] + 1)}


def _least_estimate(
    probes: Sequence[Probe], models: Sequence[Any], optimizers: Sequence[Any]
) -> Estimate | None:
    """The estimator's view before it has seen an input: gradients and what the optimizer's step takes, no activations. None for models on
    several devices, whose shares it does not tell."""
    if sum(probe.device.kind != "host" for probe in probes) > 1:
        return None
    first = probes[0]
    return predict(
        models, optimizers, device_kind=first.device.kind, context_bytes=first.context_bytes or 0
    )


def _others_bytes(probe: Probe) -> int:
    """What others take of a CUDA device's own memory, the context included. A limit below that of the device leaves room for them."""
    if probe.device.kind != "cuda" or probe.device.limit_source != "device memory":
        return 0
    torch = sys.modules["torch"]
    try:
        free, total = torch.cuda.mem_get_info(probe.device.index)
        return max(0, int(total) - int(free) - int(torch.cuda.memory_reserved(probe.device.index)))
    except (RuntimeError, AttributeError, AssertionError):  # a build or a driver that does not tell
        return 0


def _give_back(probes: Sequence[Probe]) -> None:
    """Cached blocks in the sizes of an evaluation are of no use to a training step, and split for it they are of no use to anybody."""
    if any(probe.device.kind == "cuda" for probe in probes):
        sys.modules["torch"].cuda.empty_cache()


def _torch_device(probe: Probe) -> str:
    return "cpu" if probe.device.kind == "host" else f"{probe.device.kind}:{probe.device.index}"
