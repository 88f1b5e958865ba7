"""The least that a step of a model needs which cannot be traced: what exists before it.

Its operations outside of modules, autocast and checkpointing are in its code, so nothing knows its
activations. Nor which parameters backward reaches: only those get a gradient, and with it the
optimizer's state and temporaries. Nothing runs, and no tensor's data is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from memagent.components import EMPTY, distinct, measure_by_device, modules_of, parameters_of
from memagent.estimator.devices import ContextSize
from memagent.estimator.estimate import Estimate
from memagent.estimator.input_specs import TensorSpec

NO_CONTEXT = ContextSize(0)


def least_needs(
    models: Sequence[Any],
    optimizers: Sequence[Any],
    *,
    device: str | None = None,
    inputs: tuple[TensorSpec, ...] | None = None,
    limit_bytes: int | None = None,
    device_kind: str = "host",
    context: ContextSize = NO_CONTEXT,
) -> Estimate:
    """Return the bytes that exist before the step; whatever the step makes comes on top.

    device: torch's name of the device that they are on. None: the models will be moved to one, and
    the optimizer's state begins empty, as a trace has it. `inputs` are recorded. Of a context that
    wasn't measured the lower end counts.
    """
    components = {
        **(
            _movable(models, optimizers)
            if device is None
            else _resident_sizes(models, optimizers, device)
        ),
        "context": context.interval[0] if context.interval else context.size_bytes,
    }
    on_gpu = device_kind == "cuda"
    everything = sum(components.values())
    return Estimate(
        method="bound",
        # on a GPU the context is outside of the allocator
        peak_allocated_bytes=everything - (components["context"] if on_gpu else 0),
        peak_device_bytes=everything if on_gpu else None,
        components=components,
        limit_bytes=limit_bytes,
        assumptions={
            "optimizer": [type(optimizer).__name__ for optimizer in optimizers],
            "inputs": [{"shape": list(shape), "dtype": dtype} for shape, dtype in inputs or ()],
            "activations": "not counted, nor are gradients and what the optimizer's step allocates",
        },
    )


def _resident_sizes(
    models: Sequence[Any], optimizers: Sequence[Any], device: str
) -> dict[str, int]:
    """Return what a device holds; gradients are left out, as the script may drop them first."""
    # a paged state is in the driver's memory, and may be on the host
    resident = [each for each in optimizers if not _is_paged(each)]
    sizes = measure_by_device(models, resident, busy=None).get(device, EMPTY)
    return {
        "parameters": sizes.parameters_bytes,
        "optimizer_state": sizes.optimizer_state_bytes,
        "buffers": sizes.buffers_bytes,
    }


def _is_paged(optimizer: Any) -> bool:
    """Return True for a paged optimizer of bitsandbytes, without running the script's code."""
    try:
        attributes = object.__getattribute__(optimizer, "__dict__")
    except (AttributeError, TypeError):
        return False
    return isinstance(attributes, dict) and attributes.get("is_paged") is True


def _movable(models: Sequence[Any], optimizers: Sequence[Any]) -> dict[str, int]:
    parameters = parameters_of(models, optimizers)
    buffers = distinct(
        buffer
        for module in modules_of(models)
        for buffer in module._buffers.values()
        if buffer is not None
    )
    return {"parameters": _stored_bytes(parameters), "buffers": _stored_bytes(buffers)}


def _stored_bytes(tensors: Iterable[Any]) -> int:
    """Return the least that tensors take on any device, where views may share their storage.

    Tensors without a storage, such as sparse ones, don't count.
    """
    views: dict[int, int] = {}
    capacities: dict[int, int] = {}
    for tensor in (part for each in tensors for part in _parts(each)):
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError, ValueError):
            continue
        capacities[storage._cdata] = storage.nbytes()
        size = tensor.numel() * tensor.element_size()
        views[storage._cdata] = views.get(storage._cdata, 0) + size
    return sum(min(size, capacities[storage]) for storage, size in views.items())


def _parts(tensor: Any) -> Iterator[Any]:
    """Yield the tensors inside a tensor of a wrapper class (DTensor, torchao), or the tensor."""
    if not hasattr(type(tensor), "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _parts(getattr(tensor, name))
