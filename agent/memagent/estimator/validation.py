"""What `memagent.estimate` was given, checked before a process is begun for it: each mistake is an EstimateError that says what to give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from memagent.errors import EstimateError

Shape = tuple[tuple[int, ...], str]
"""Sizes of the dimensions and the dtype's name."""
_AUTOCAST: Mapping[str, Literal["bf16", "fp16"]] = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "half": "fp16",
}  # fmt: skip

_PLAIN = (int, float, str, bytes, Mapping, list, tuple)


def autocast_named(given: Any) -> Literal["bf16", "fp16"] | None:
    """ "bf16" or "fp16" for a name or a torch dtype; None stays None. Raises EstimateError for another."""
    if given is None:
        return None
    found = _AUTOCAST.get(str(given).lower().removeprefix("torch."))
    if found is None:
        raise EstimateError(f'autocast is {given!r}: give "bf16", "fp16" or None')
    return found


def checkpointing_named(given: Any) -> Literal["full"] | None:
    """True counts as "full", False and "none" as None. Raises EstimateError for another."""
    if given is None or given is False or given == "none":
        return None
    if given is True or given == "full":
        return "full"
    raise EstimateError(
        f'checkpointing is {given!r}: give "full" or None; what the model itself recomputes is traced anyway'
    )


def check_step(inputs: Any, loss: Any, accumulate: Any) -> None:
    """Raises EstimateError for inputs that hold no tensor, a loss that cannot be called, and less than one forward a step."""
    if not shapes_in(inputs) and (
        inputs is None or isinstance(inputs, _PLAIN)
    ):  # other objects may hold some
        raise EstimateError(
            f"inputs is {_short(inputs)} and holds no tensor: give what the model is called with (a tensor, a tuple, a dict), "
            'or (shape, dtype name) in place of a tensor, such as ((8, 1024), "int64")'
        )
    if loss is not None and not callable(loss):
        raise EstimateError(
            f"loss is {_short(loss)}: give a callable, loss(output, targets), or None for the model's own"
        )
    if not isinstance(accumulate, int) or accumulate < 1:
        raise EstimateError(f"accumulate is {accumulate!r}: give 1 or more forwards a step")


def check_optimizer(model: Any, optimizer: Any) -> None:
    """Raises EstimateError for what is no optimizer, and for one that holds no parameter of the model."""
    if optimizer is None or isinstance(optimizer, str):
        return
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        if not callable(optimizer):
            raise EstimateError(
                f"optimizer is {_short(optimizer)}: give one made for the model, a name, a callable or None"
            )
        return
    held = {id(parameter) for group in groups for parameter in group["params"]}
    if isinstance(model, type) or not hasattr(model, "named_parameters"):
        return  # it is yet to be made
    if not any(id(parameter) in held for parameter in model.parameters()):
        raise EstimateError(
            f"the {type(optimizer).__name__} given holds none of the model's parameters: make it from model.parameters()"
        )


def shapes_in(value: Any) -> list[Shape]:
    """Shapes and dtypes of the tensors in the inputs, or of what stands for them."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return [(tuple(value.shape), str(value.dtype).removeprefix("torch."))]
    if isinstance(value, Mapping):
        return [shape for item in value.values() for shape in shapes_in(item)]
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str):
        return [(tuple(value[0]), value[1])]
    if isinstance(value, tuple | list):
        return [shape for item in value for shape in shapes_in(item)]
    return []


def _short(value: Any) -> str:
    return (
        f"{value!r:.40}"
        if value is None or isinstance(value, int | float | str)
        else f"a {type(value).__name__}"
    )
