"""The least that a step of a live model and optimizer needs.

A model that cannot be traced has activations that nothing knows: its operations outside of modules,
autocast and checkpointing are in its code. The objects have the rest: parameters, buffers,
gradients, and the optimizer's state and temporaries. Nothing runs, no tensor's data is touched, and
torch is never imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memagent.components import distinct, modules_of, parameters_of
from memagent.estimator.devices import ContextSize
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.state_sizes import KNOWN_OPTIMIZERS, bytes_of, trained_parameters
from memagent.estimator.input_specs import TensorSpec

NO_CONTEXT = ContextSize(0)


def least_needs(
    models: Sequence[Any],
    optimizers: Sequence[Any],
    *,
    inputs: tuple[TensorSpec, ...] | None = None,
    limit_bytes: int | None = None,
    device_kind: str = "host",
    context: ContextSize = NO_CONTEXT,
) -> Estimate:
    """Return the bytes of the optimizer's step; activations come on top at another time.

    `inputs` are recorded. An optimizer of an unknown class counts without state. Of a context that
    wasn't measured the lower end counts.
    """
    parameters = parameters_of(models, optimizers)
    known = [each for each in optimizers if type(each).__name__ in KNOWN_OPTIMIZERS]
    unknown = sorted({type(each).__name__ for each in optimizers} - KNOWN_OPTIMIZERS)
    components = {
        "parameters": sum(map(bytes_of, parameters)),
        "gradients": sum(bytes_of(each) for each in parameters if each.requires_grad),
        "optimizer_state": int(sum(size(each) for each, size in trained_parameters(known))),
        "buffers": sum(map(bytes_of, _buffers(models))),
        "workspace": _temporaries_bytes(known, device_kind),
        "context": context.interval[0] if context.interval else context.size_bytes,
    }
    on_gpu = device_kind == "cuda"
    everything = sum(components.values())
    assumptions: dict[str, Any] = {
        "optimizer": [type(optimizer).__name__ for optimizer in optimizers],
        "inputs": [{"shape": list(shape), "dtype": dtype} for shape, dtype in inputs or ()],
        "activations": "not known, and not counted",
    }
    if unknown:
        assumptions["optimizer_state"] = f"not counted for {', '.join(unknown)}"
    return Estimate(
        method="bound",
        # on a GPU the context is outside of the allocator
        peak_allocated_bytes=everything - (components["context"] if on_gpu else 0),
        peak_device_bytes=everything if on_gpu else None,
        components=components,
        limit_bytes=limit_bytes,
        assumptions=assumptions,
    )


def _buffers(models: Sequence[Any]) -> list[Any]:
    return list(
        distinct(
            buffer
            for module in modules_of(models)
            for buffer in module._buffers.values()
            if buffer is not None
        )
    )


def _temporaries_bytes(optimizers: Sequence[Any], device_kind: str) -> int:
    """Return the temporaries of the first step of an optimizer.

    foreach (the default on GPUs) copies all parameters of a group once; the loop copies one
    parameter at a time, twice; a fused step copies none.
    """
    largest = 0
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        sizes = [bytes_of(parameter) for parameter in group["params"] if parameter.requires_grad]
        if not sizes or group.get("fused"):
            continue
        foreach = group.get("foreach")
        uses_foreach = foreach if foreach is not None else device_kind == "cuda"
        largest = max(largest, sum(sizes) if uses_foreach else 2 * max(sizes))
    return largest
