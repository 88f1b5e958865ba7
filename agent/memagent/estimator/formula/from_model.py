"""The formula estimator on a live model and optimizer: sizes are read off, activations are reckoned from modules and input shapes.

Nothing is run, no tensor's data is touched, and torch is never imported: everything is read from the objects given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from memagent.components import distinct, parameters_of
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.activations import Shape, saved_bytes
from memagent.estimator.formula.from_sizes import StepSizes, estimate_step
from memagent.estimator.formula.precision import BYTES_OF

_STATE_TENSORS = {
    "SGD": 0, "Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "RMSprop": 1, "Adagrad": 1, "Adadelta": 2, "Lion": 1, "ASGD": 1,
    "Rprop": 2, "Muon": 1,
}  # fmt: skip
"""Tensors of the parameter's shape and dtype that torch's optimizers keep for each parameter (torch/optim/*.py, `_init_group`)."""

_EIGHT_BIT = ("Adam8bit", "AdamW8bit", "PagedAdam8bit", "PagedAdamW8bit")


def predict(
    models: Sequence[Any],
    optimizers: Sequence[Any],
    *,
    inputs: tuple[Shape, ...] | None = None,
    limit_bytes: int | None = None,
    device_kind: str = "host",
    context_bytes: int = 0,
) -> Estimate:
    """What a step of these needs. `inputs` are the shapes and dtypes of the tensors handed to forward; without them activations are
    left out, and `assumptions` says so. `context_bytes` is what the process holds apart from tensors."""
    parameters = parameters_of(models, optimizers)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    state, unknown = _state_bytes(optimizers)
    activations, notes = (
        saved_bytes(models, inputs)
        if inputs
        else (None, {"activations": "left out: no input was seen"})
    )
    assumptions = {
        "optimizer": [type(optimizer).__name__ for optimizer in optimizers],
        "inputs": [{"shape": list(shape), "dtype": dtype} for shape, dtype in inputs or ()],
        **notes,
    }
    if unknown:
        assumptions["optimizer_state"] = (
            f"two tensors a parameter assumed for {', '.join(sorted(unknown))}"
        )
    sizes = StepSizes(
        parameters_bytes=sum(map(_bytes, parameters)),
        gradients_bytes=sum(map(_bytes, trained)),
        optimizer_state_bytes=state,
        buffers_bytes=sum(
            map(_bytes, distinct(buffer for model in models for buffer in model.buffers()))
        ),
        activations_bytes=activations,
        temporaries_bytes=_temporaries_bytes(optimizers, device_kind),
        context_bytes=context_bytes,
    )
    return estimate_step(
        sizes, limit_bytes=limit_bytes, assumptions=assumptions, on_gpu=device_kind == "cuda"
    )


def _state_bytes(optimizers: Sequence[Any]) -> tuple[int, set[str]]:
    """State that the optimizers will hold, and the names of those whose state is not known."""
    total, unknown = 0.0, set()
    for optimizer in optimizers:
        name = type(optimizer).__name__
        if name not in _STATE_TENSORS and name not in _EIGHT_BIT and name != "Adafactor":
            unknown.add(name)
        for group in optimizer.param_groups:
            sizes = _state_sizes(name, group)
            total += sum(
                sizes(parameter) for parameter in group["params"] if parameter.requires_grad
            )
    return int(total), unknown


def missing_state_bytes(optimizers: Sequence[Any]) -> dict[str, int]:
    """State that the optimizers will allocate in their next step and do not hold yet, by torch device ("cpu", "cuda:0")."""
    found: dict[Any, float] = {}
    for optimizer in optimizers:
        held = optimizer.state
        for group in optimizer.param_groups:
            sizes = _state_sizes(type(optimizer).__name__, group)
            for parameter in group["params"]:
                if parameter.requires_grad and not (held and held.get(parameter)):
                    device = parameter.device
                    found[device] = found.get(device, 0.0) + sizes(parameter)
    return {str(device): int(size) for device, size in found.items() if size}


def missing_gradients_bytes(optimizers: Sequence[Any]) -> dict[str, int]:
    """Gradients that a backward will add to what is held, by torch device."""
    found: dict[Any, int] = {}
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None:
                found[parameter.device] = found.get(parameter.device, 0) + _bytes(parameter)
    return {str(device): size for device, size in found.items()}


def _state_sizes(name: str, group: dict[str, Any]) -> Callable[[Any], float]:
    """Bytes of state by parameter, for an optimizer of that name."""
    if name in _EIGHT_BIT:
        return lambda parameter: float(parameter.numel() * (2 + 2 * 4 / 256))
    if name == "Adafactor":  # one row and one column of each matrix
        return _factored_bytes
    tensors = _STATE_TENSORS.get(name, 2)
    tensors += bool(group.get("momentum")) if name in ("SGD", "RMSprop") else 0
    tensors += bool(group.get("amsgrad")) + bool(name == "RMSprop" and group.get("centered"))
    step_counter = 4 if name not in ("SGD",) else 0
    return lambda parameter: float(tensors * _bytes(parameter) + step_counter)


def _factored_bytes(parameter: Any) -> float:
    shape = parameter.shape
    return float(4 * (sum(shape[-2:]) if len(shape) >= 2 else parameter.numel()))


def _temporaries_bytes(optimizers: Sequence[Any], device_kind: str) -> int:
    """What the first optimizer's step allocates for a moment: foreach (the default on GPUs) works on all parameters of a group at once,
    one copy of them; the single-tensor loop on one parameter at a time, two copies of the largest; fused on none."""
    largest = 0
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        sizes = [_bytes(parameter) for parameter in group["params"] if parameter.requires_grad]
        if not sizes or group.get("fused"):
            continue
        foreach = group.get("foreach")
        uses_foreach = foreach if foreach is not None else device_kind == "cuda"
        largest = max(largest, sum(sizes) if uses_foreach else 2 * max(sizes))
    return largest


def _bytes(tensor: Any) -> int:
    """Bytes of the values, of this rank's shard where the tensor is sharded."""
    local = tensor._local_tensor if hasattr(type(tensor), "_local_tensor") else tensor
    return int(local.numel() * _value_bytes(local.dtype, local.element_size()))


@functools.cache
def _value_bytes(dtype: Any, element_bytes: int) -> float:
    return BYTES_OF.get(str(dtype).removeprefix("torch."), element_bytes)
