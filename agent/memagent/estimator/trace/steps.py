"""Run training steps of the user's objects under a recorder, on fake or real tensors.

A step: the batch arrives on the device, forward under autocast, loss, backward (once for each
accumulation), the optimizer, zeroed gradients. Between steps only the program's own state stays
alive.
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
from memagent.estimator.trace.convert import quantisation_tensors
from memagent.estimator.trace.recorder import StorageRecorder, plain_tensors

_DTYPE_BY_SHORT_NAME = {"bf16": "bfloat16", "fp16": "float16", "half": "float16"}
MEAN_LOSS_NOTE = "without a loss, the trace takes the mean of the model's output"


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The operations of one training step.

    `loss` takes (output, targets or inputs) or (output); None means the output's own loss.
    `clip_norm` is a gradient norm or None. With `keep_output`, the model's output lives through
    backward, as a variable of a step's function does, and with `carry_output` until the next output
    replaces it, as a variable of the loop does. With `widen_output`, it's converted to fp32
    after forward, as accelerate does under autocast.
    """

    loss: Callable[..., Any] | None = None
    autocast: str | None = None
    scaler: bool = False
    accumulate: int = 1
    keep_output: bool = True
    carry_output: bool = False
    widen_output: bool = False
    set_to_none: bool = True
    clip_norm: float | None = None
    steps: int = 2


def run_steps(
    recorder: StorageRecorder,
    model: torch.nn.Module,
    make_batch: Callable[[], tuple[Any, Any]],
    optimizer: torch.optim.Optimizer | None,
    plan: StepPlan,
) -> list[str]:
    """Run the plan's steps under the active recorder and return notes.

    `make_batch` creates the inputs and targets (None: no targets) of each forward.
    """
    notes: list[str] = []
    scaler = _NonBlockingScaler(recorder.device_type) if plan.scaler else None
    carried: list[Any] = []
    for step in range(plan.steps):
        recorder.step = step
        for _ in range(plan.accumulate):
            recorder.phase = "data"
            inputs, targets = make_batch()
            _assign_component(recorder, [inputs, targets], "data")
            _forward_backward(recorder, model, inputs, targets, plan, scaler, notes, carried)
            # as a loop's next batch replaces the variables of the last one
            del inputs, targets
        recorder.phase = "optimizer"
        if optimizer is not None:
            _update(recorder, model, optimizer, plan, scaler)
        gc.collect()
    return notes


def record_model(recorder: StorageRecorder, model: torch.nn.Module) -> None:
    """Record the model's storages, and have each new gradient assigned to its parameter."""
    for name, parameter in model.named_parameters():
        for part in plain_tensors(parameter):
            recorder.add(part, "", "parameters", name)
        for part in quantisation_tensors(parameter):
            recorder.add(part, "", "parameters", name)
        if parameter.requires_grad and parameter.is_leaf:
            parameter.register_post_accumulate_grad_hook(_GradientHook(recorder, name))  # type: ignore[no-untyped-call]
    for name, buffer in model.named_buffers():
        for part in plain_tensors(buffer):
            recorder.add(part, "", "buffers", name)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a batch, an output or an optimizer's state of any nesting."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


class _NonBlockingScaler(torch.amp.GradScaler):
    """A GradScaler that never reads whether it found infinities: fake tensors have no values."""

    def _maybe_opt_step(
        self, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return optimizer.step(*args, **kwargs)


class _GradientHook:
    """Assigns the storage of a parameter's gradient."""

    def __init__(self, recorder: StorageRecorder, name: str) -> None:
        self._recorder = recorder
        self._name = name

    def __call__(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._recorder.assign_component(parameter.grad, "gradients", self._name)


def _assign_component(recorder: StorageRecorder, value: Any, component: str) -> None:
    # A separate function, because a loop's variable would keep the last tensor alive.
    for tensor in tensors_in(value):
        recorder.assign_component(tensor, component)


def _forward_backward(
    recorder: StorageRecorder,
    model: torch.nn.Module,
    inputs: Any,
    targets: Any,
    plan: StepPlan,
    scaler: torch.amp.GradScaler | None,
    notes: list[str],
    carried: list[Any],
) -> None:
    recorder.phase = "forward"
    with autocast_context(recorder.device_type, plan.autocast):
        output = call_model(model, inputs)
        if plan.widen_output:
            output = _widened(output)
        carried[:] = [output] if plan.carry_output else []
        loss = compute_loss(output, inputs if targets is None else targets, plan.loss, notes)
    if not plan.keep_output:
        del output
    if plan.accumulate > 1:
        loss = loss / plan.accumulate
    recorder.phase = "backward"
    if loss.requires_grad:
        (scaler.scale(loss) if scaler is not None else loss).backward()  # type: ignore[no-untyped-call]


def _update(
    recorder: StorageRecorder,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    plan: StepPlan,
    scaler: torch.amp.GradScaler | None,
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
    _assign_component(recorder, list(optimizer.state.values()), "optimizer_state")
    optimizer.zero_grad(set_to_none=plan.set_to_none)


def _widened(value: Any) -> Any:
    """Return an output whose two-byte tensors are converted (accelerate's `convert_to_fp32`)."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if isinstance(value, Mapping):
        return {name: _widened(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_widened(item) for item in value)
    return value


def call_model(model: torch.nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)


def compute_loss(
    output: Any, inputs: Any, loss: Callable[..., Any] | None, notes: list[str]
) -> torch.Tensor:
    if loss is not None:
        value = loss(output, inputs) if _takes_two_arguments(loss) else loss(output)
        if not isinstance(value, torch.Tensor):
            raise TraceError(f"the loss returned {type(value).__name__}, not a tensor")
        return value
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    tensors = [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
    if not tensors:
        raise TraceError("the model's output has no floating-point tensor for a loss: pass loss=")
    if tensors[0].numel() == 1:
        return tensors[0].squeeze()
    if MEAN_LOSS_NOTE not in notes:
        notes.append(MEAN_LOSS_NOTE)
    return tensors[0].mean()


def _takes_two_arguments(loss: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):
        return True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    return len(required) >= 2 or any(
        parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters
    )


def autocast_context(device_type: str, dtype: str | None) -> contextlib.AbstractContextManager[Any]:
    if dtype is None:
        return contextlib.nullcontext()
    from memagent.estimator.trace.convert import parse_dtype

    return torch.autocast(device_type, dtype=parse_dtype(_DTYPE_BY_SHORT_NAME.get(dtype, dtype)))
