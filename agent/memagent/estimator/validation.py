"""Checks of the arguments of `memagent.estimate`, before a process is started for them.

Each mistake is an EstimateError that says what to pass instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from memagent.errors import EstimateError
from memagent.estimator.input_specs import tensor_specs

_AUTOCAST: Mapping[str, Literal["bf16", "fp16"]] = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
}
_PLAIN_TYPES = (int, float, str, bytes, Mapping, list, tuple)


def autocast_named(dtype: Any) -> Literal["bf16", "fp16"] | None:
    """Return "bf16" or "fp16" for a name or a torch dtype, None for None."""
    if dtype is None:
        return None
    name = _AUTOCAST.get(str(dtype).lower().removeprefix("torch."))
    if name is None:
        raise EstimateError(f'autocast is {dtype!r}: use "bf16", "fp16" or None')
    return name


def checkpointing_named(value: Any) -> Literal["full"] | None:
    """Return "full" for True and "full", None for None, False and "none"."""
    if value is None or value is False or value == "none":
        return None
    if value is True or value == "full":
        return "full"
    raise EstimateError(
        f'checkpointing is {value!r}: use "full" or None; the model\'s own checkpointing is traced '
        "anyway"
    )


def check_step(inputs: Any, loss: Any, accumulation: Any) -> None:
    """Check that inputs hold a tensor, the loss is callable, and a step has a forward."""
    has_tensor = next(tensor_specs(inputs), None) is not None
    if not has_tensor and (inputs is None or isinstance(inputs, _PLAIN_TYPES)):
        # objects of other types may hold tensors
        raise EstimateError(
            f"inputs is {_described(inputs)} and holds no tensor: pass the model's arguments (a "
            "tensor, a tuple, a dict), or (shape, dtype name) in place of a tensor, such as "
            '((8, 1024), "int64")'
        )
    if loss is not None and not callable(loss):
        raise EstimateError(
            f"loss is {_described(loss)}: pass a callable, loss(output, targets), or None for the "
            "model's own"
        )
    if not isinstance(accumulation, int) or accumulation < 1:
        raise EstimateError(f"accumulation is {accumulation!r}: use 1 or more forwards a step")


def check_optimizer(model: Any, optimizer: Any) -> None:
    """Check that the optimizer is one, and holds a parameter of the model."""
    if optimizer is None or isinstance(optimizer, str):
        return
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        if not callable(optimizer):
            raise EstimateError(
                f"optimizer is {_described(optimizer)}: pass one made for the model, a name, a "
                "callable or None"
            )
        return
    if isinstance(model, type) or not hasattr(model, "named_parameters"):
        return  # a factory: there are no parameters yet
    held = {id(parameter) for group in groups for parameter in group["params"]}
    if not any(id(parameter) in held for parameter in model.parameters()):
        raise EstimateError(
            f"the {type(optimizer).__name__} holds none of the model's parameters: make it from "
            "model.parameters()"
        )


def _described(value: Any) -> str:
    is_short = value is None or isinstance(value, int | float | str)
    return f"{value!r:.40}" if is_short else f"a {type(value).__name__}"
