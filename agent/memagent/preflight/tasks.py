"""The tasks of a preflight, one evaluation and one checkpoint, and the state to restore after."""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any

_TARGET_PREFIXES = ("target", "label", "y")
"""Names of optional parameters of forward that take what a loader yields after the inputs."""
MAX_COPIED_BYTES = 2**30
"""Buffers up to this size together are copied to the host before a task; larger ones are not."""

Restore = Callable[[], None]


class NullFile:
    """A file that discards what is written."""

    def write(self, data: Any) -> int:
        return len(data)

    def flush(self) -> None:
        return None


def evaluation_task(models: Sequence[Any], batch: Any) -> Callable[[], None]:
    """Return one forward of the first model in eval mode, without gradients; or the callable."""
    if callable(batch):
        return _without_result(batch)
    # DDP's forward synchronizes buffers with the other ranks
    model = models[0].module if type(models[0]).__name__ == "DistributedDataParallel" else models[0]

    def evaluate() -> None:
        for item in models:
            item.eval()
        with sys.modules["torch"].no_grad():
            _call_model(model, _to_device(batch, next(iter(model.parameters())).device))

    return evaluate


def checkpoint_task(
    models: Sequence[Any], optimizers: Sequence[Any], checkpoint: Any
) -> Callable[[], None]:
    """Return a torch.save of all states to nowhere; or the callable."""
    if callable(checkpoint):
        return _without_result(checkpoint)

    def save() -> None:
        states = [item.state_dict() for item in (*models, *optimizers)]
        sys.modules["torch"].save(states, NullFile())

    return save


def is_sharded(models: Sequence[Any]) -> bool:
    """Return True if parameters are divided among ranks (FSDP, DTensor, DeepSpeed).

    A forward or a state_dict then needs all ranks.
    """
    return any(
        hasattr(parameter, "_local_tensor")
        or hasattr(parameter, "ds_id")
        or type(parameter).__name__ == "FlatParameter"
        for model in models
        for parameter in model.parameters()
    )


def _without_result(task: Callable[[], object]) -> Callable[[], None]:
    """Return a task that drops its result at once, as a loop would."""

    def run() -> None:
        task()

    return run


def _call_model(model: Any, batch: Any) -> Any:
    """Call the model on a batch as its loader yields it, without what forward doesn't take."""
    plain = getattr(model, "_orig_mod", model)  # inside torch.compile's wrapper
    parameters = list(inspect.signature(plain.forward).parameters.values())
    kinds = {parameter.kind for parameter in parameters}
    if isinstance(batch, Mapping):
        if inspect.Parameter.VAR_KEYWORD in kinds:
            return model(**batch)
        names = {parameter.name for parameter in parameters}
        return model(**{name: value for name, value in batch.items() if name in names})
    if not isinstance(batch, list | tuple):
        return model(batch)
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    required = [parameter for parameter in positional if parameter.default is parameter.empty]
    if not required or inspect.Parameter.VAR_POSITIONAL in kinds:
        return model(*batch)
    # A loader yields inputs, then targets: the first optional parameters count if they are named
    # like targets.
    targets = list(
        takewhile(
            lambda parameter: parameter.name.startswith(_TARGET_PREFIXES),
            positional[len(required) :],
        )
    )
    return model(*batch[: len(required) + len(targets)])


def _to_device(value: Any, device: Any) -> Any:
    """Return the batch with its tensors on `device`."""
    if isinstance(value, sys.modules["torch"].Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _to_device(item, device) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_device(item, device) for item in value]
    return value


@contextmanager
def preserve_state(models: Sequence[Any], gpus: Sequence[int]) -> Iterator[None]:
    """Restore the modes and buffers of `models` and all random generators afterwards."""
    torch = sys.modules["torch"]
    modules = list(dict.fromkeys(module for model in models for module in model.modules()))
    restores = [_save_modes(modules), _save_buffers(torch, modules), _save_random_state()]
    try:
        with torch.random.fork_rng(devices=list(gpus), enabled=True):
            yield
    finally:
        for restore in restores:
            restore()


def _save_modes(modules: Sequence[Any]) -> Restore:
    """Save each module's mode: parts may be in eval mode while the rest trains."""
    modes = [(module, module.training) for module in modules]

    def restore() -> None:
        for module, training in modes:
            module.training = training

    return restore


def _save_buffers(torch: Any, modules: Sequence[Any]) -> Restore:
    """Save the buffers and their values; only changed values are written back."""
    places = [
        (module._buffers, name, buffer)
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    copies: dict[int, tuple[Any, Any]] = {}
    budget = MAX_COPIED_BYTES
    for _, _, buffer in places:
        # Buffers on the meta device, or made in inference mode, can't be copied.
        with suppress(RuntimeError, NotImplementedError):
            size = buffer.numel() * buffer.element_size()
            if id(buffer) not in copies and size <= budget:
                budget -= size
                copies[id(buffer)] = (buffer, buffer.detach().to("cpu", copy=True))

    def restore() -> None:
        for owner, name, buffer in places:
            owner[name] = buffer
        for buffer, copy in copies.values():
            # Compare values: batch norm writes without changing a tensor's version.
            if not torch.equal(buffer.detach().to("cpu"), copy):
                with torch.no_grad():
                    buffer.copy_(copy)

    return restore


def _save_random_state() -> Restore:
    """Save Python's and numpy's generators: an evaluation may shuffle or augment with either."""
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None

    def restore() -> None:
        random.setstate(python)
        if numpy is not None and state is not None:
            numpy.random.set_state(state)

    return restore
