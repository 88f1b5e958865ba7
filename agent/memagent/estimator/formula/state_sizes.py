"""Sizes of trained parameters, of their gradients and of the optimizer's state for each.

`attach` reads them, so this module imports little.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from memagent.estimator.formula.precision import BYTES_OF

_STATE_TENSORS = {
    "SGD": 0,
    "Adam": 2,
    "AdamW": 2,
    "NAdam": 2,
    "RAdam": 2,
    "Adamax": 2,
    "RMSprop": 1,
    "Adagrad": 1,
    "Adadelta": 2,
    "Lion": 1,
    "ASGD": 1,
    "Rprop": 2,
    "Muon": 1,
}
"""Tensors of the parameter's shape and dtype that torch's optimizers keep for each parameter
(torch/optim/*.py, `_init_group`)."""
_DEFAULT_STATE_TENSORS = 2
_EIGHT_BIT = ("Adam8bit", "AdamW8bit", "PagedAdam8bit", "PagedAdamW8bit")


def missing_state_bytes(optimizers: Sequence[Any]) -> dict[str, int]:
    """Return by torch device ("cpu", "cuda:0") the state that the next step will allocate."""
    missing: defaultdict[Any, float] = defaultdict(float)
    for optimizer in optimizers:
        state = optimizer.state
        for parameter, size in trained_parameters([optimizer]):
            if not (state and state.get(parameter)):
                missing[parameter.device] += size(parameter)
    return {str(device): int(size) for device, size in missing.items() if size}


def missing_gradients_bytes(optimizers: Sequence[Any]) -> dict[str, int]:
    """Return by torch device the gradients that a backward will allocate."""
    missing: Counter[Any] = Counter()
    for parameter, _ in trained_parameters(optimizers):
        if parameter.grad is None:
            missing[parameter.device] += bytes_of(parameter)
    return {str(device): size for device, size in missing.items()}


def trained_parameters(optimizers: Sequence[Any]) -> Iterator[tuple[Any, Callable[[Any], float]]]:
    """Iterate over trained parameters, each with the function that sizes its state."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            size = _state_size(type(optimizer).__name__, group)
            yield from ((p, size) for p in group["params"] if p.requires_grad)


def _state_size(name: str, group: dict[str, Any]) -> Callable[[Any], float]:
    """Return the function from a parameter to bytes of state, for an optimizer of that name."""
    if name in _EIGHT_BIT:
        return lambda parameter: float(parameter.numel() * (2 + 2 * 4 / 256))
    if name == "Adafactor":
        return _factored_bytes
    tensors = _STATE_TENSORS.get(name, _DEFAULT_STATE_TENSORS)
    tensors += bool(group.get("momentum")) if name in ("SGD", "RMSprop") else 0
    tensors += bool(group.get("amsgrad")) + bool(name == "RMSprop" and group.get("centered"))
    step_counter = 0 if name == "SGD" else 4
    return lambda parameter: float(tensors * bytes_of(parameter) + step_counter)


def _factored_bytes(parameter: Any) -> float:
    """Return one row and one column of each matrix, in fp32."""
    shape = parameter.shape
    return float(4 * (sum(shape[-2:]) if len(shape) >= 2 else parameter.numel()))


def bytes_of(tensor: Any) -> int:
    """Return the bytes of the values; of this rank's shard if the tensor is sharded."""
    local = tensor._local_tensor if _is_sharded(type(tensor)) else tensor  # type: ignore[arg-type]
    value_bytes = _VALUE_BYTES.get(local.dtype)
    if value_bytes is None:
        name = str(local.dtype).removeprefix("torch.")
        value_bytes = _VALUE_BYTES[local.dtype] = BYTES_OF.get(name, local.element_size())
    return int(local.numel() * value_bytes)


_VALUE_BYTES: dict[Any, float] = {}
"""Bytes of a value by torch dtype, of those asked for: `attach` asks for each parameter."""


@functools.cache
def _is_sharded(kind: type) -> bool:
    return hasattr(kind, "_local_tensor")
