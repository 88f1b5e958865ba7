"""Runs training steps of the user's objects while a recorder looks on; the same code runs them on fake tensors and on
real ones.

A step is: the batch arrives on the device, forward under autocast, loss, backward (as many times as gradients are
accumulated), the optimizer, gradients cleared. Between steps nothing but the program's own state stays alive.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from memagent.errors import TraceError
from memagent.estimator.trace.recorder import StorageRecorder, parts_of


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one training step does. `loss(output, targets or inputs)`, `loss(output)` or None: the output's own;
    `clip_norm` is a gradient norm, or None.

    `keep_output`: whether the model's output outlives backward, as a variable of the training loop does.
    """

    loss: Callable[..., Any] | None = None
    autocast: str | None = None
    scaler: bool = False
    accumulate: int = 1
    keep_output: bool = True
    set_to_none: bool = True
    clip_norm: float | None = None
    steps: int = 2


def run_steps(
    recorder: StorageRecorder,
    model: torch.nn.Module,
    batch: Callable[[], tuple[Any, Any]],
    optimizer: torch.optim.Optimizer | None,
    plan: StepPlan,
) -> list[str]:
    """Run the plan's steps under the recorder, which must be active. `batch` makes inputs and targets (None: none)
    anew each time.

    Returns notes.
    """
    notes: list[str] = []
    scaler = _scaler(recorder, plan)
    for step in range(plan.steps):
        recorder.step = step
        for _ in range(plan.accumulate):
            recorder.phase = "data"
            inputs, targets = batch()
            _mark(recorder, [inputs, targets], "data")
            _forward_backward(recorder, model, inputs, targets, plan, scaler, notes)
            del inputs, targets
        recorder.phase = "optimizer"
        if optimizer is not None:
            _update(recorder, model, optimizer, plan, scaler)
        gc.collect()
    return notes


def mark_model(recorder: StorageRecorder, model: torch.nn.Module) -> None:
    """Say which storages are the model's, and have each gradient marked as it is handed over."""
    for name, parameter in model.named_parameters():
        for part in parts_of(parameter):
            recorder.see(part, "", "parameters", name)
        if parameter.requires_grad and parameter.is_leaf:
            parameter.register_post_accumulate_grad_hook(_Marker(recorder, name))  # type: ignore[no-untyped-call]
    for name, buffer in model.named_buffers():
        for part in parts_of(buffer):
            recorder.see(part, "", "buffers", name)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a batch, an output or an optimizer's state of any nesting."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def _mark(recorder: StorageRecorder, value: Any, component: str) -> None:
    for tensor in tensors_in(
        value
    ):  # a function of its own: a loop's variable would keep the last tensor alive
        recorder.mark(tensor, component)


class _Marker:
    """Marks the storage of a parameter's gradient."""

    def __init__(self, recorder: StorageRecorder, name: str) -> None:
        self._recorder, self._name = recorder, name

    def __call__(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._recorder.mark(parameter.grad, "gradients", self._name)


def _forward_backward(
    recorder: StorageRecorder,
    model: torch.nn.Module,
    inputs: Any,
    targets: Any,
    plan: StepPlan,
    scaler: Any,
    notes: list[str],
) -> None:
    recorder.phase = "forward"
    with _autocast(recorder.device_type, plan.autocast):
        output = _called(model, inputs)
        loss = _loss_of(output, inputs if targets is None else targets, plan.loss, notes)
    if not plan.keep_output:
        del output
    if plan.accumulate > 1:
        loss = loss / plan.accumulate
    recorder.phase = "backward"
    if loss.requires_grad:
        (scaler.scale(loss) if scaler is not None else loss).backward()


def _update(
    recorder: StorageRecorder,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    plan: StepPlan,
    scaler: Any,
) -> None:
    if plan.clip_norm is not None:
        if scaler is not None:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip_norm)
    if scaler is not None:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    _mark(recorder, list(optimizer.state.values()), "optimizer_state")
    optimizer.zero_grad(set_to_none=plan.set_to_none)


def _called(model: torch.nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)


def _loss_of(
    output: Any, inputs: Any, loss: Callable[..., Any] | None, notes: list[str]
) -> torch.Tensor:
    if loss is not None:
        value = loss(output, inputs) if _takes_two(loss) else loss(output)
        if not isinstance(value, torch.Tensor):
            raise TraceError(f"the loss gave {type(value).__name__}, not a tensor")
        return value
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    tensors = [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
    if not tensors:
        raise TraceError(
            "the model's output holds no floating-point tensor to take a loss of: pass loss="
        )
    if tensors[0].numel() == 1:
        return tensors[0].squeeze()
    note = "no loss was given: the mean of the model's output stands for it"
    if note not in notes:
        notes.append(note)
    return tensors[0].mean()


def _takes_two(loss: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):
        return True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        item
        for item in parameters
        if item.kind in kinds and item.default is inspect.Parameter.empty
    ]
    return len(required) >= 2 or any(
        item.kind is inspect.Parameter.VAR_POSITIONAL for item in parameters
    )


def _autocast(device_type: str, dtype: str | None) -> contextlib.AbstractContextManager[Any]:
    if dtype is None:
        return contextlib.nullcontext()
    from memagent.estimator.trace.convert import dtype_named

    short = {"bf16": "bfloat16", "fp16": "float16", "half": "float16"}
    return torch.autocast(device_type, dtype=dtype_named(short.get(dtype, dtype)))


def _scaler(recorder: StorageRecorder, plan: StepPlan) -> Any:
    """A GradScaler that never looks whether it found infinities: fake tensors have no values."""
    if not plan.scaler:
        return None

    class _Scaler(torch.amp.GradScaler):
        def _maybe_opt_step(
            self, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any
        ) -> Any:
            return optimizer.step(*args, **kwargs)

    return _Scaler(recorder.device_type)
