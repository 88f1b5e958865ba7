"""What is tried: one evaluation, one checkpoint, as the script would do them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

_TARGETS = ("target", "label", "y")
"""Optional parameters of forward that take what a loader gives beside the inputs."""


class NullSink:
    """A file that forgets."""

    def write(self, data: Any) -> int:
        return len(data)

    def flush(self) -> None:
        return None


def evaluation(models: Sequence[Any], batch: Any) -> Callable[[], None]:
    """One forward of the first model in eval mode, without gradients; or the script's own callable, as it is."""
    if callable(batch):
        return lambda: _forget(batch())
    model = models[0].module if type(models[0]).__name__ == "DistributedDataParallel" else models[0]

    def evaluate() -> None:
        for each in models:
            each.eval()
        with sys.modules["torch"].no_grad():
            _call(model, _moved(batch, next(iter(model.parameters())).device))

    return evaluate


def saving(models: Sequence[Any], optimizers: Sequence[Any], checkpoint: Any) -> Callable[[], None]:
    """torch.save of all states into nothing; or the script's own callable."""
    if callable(checkpoint):
        return lambda: _forget(checkpoint())

    def save() -> None:
        states = [item.state_dict() for item in (*models, *optimizers)]
        sys.modules["torch"].save(states, NullSink())

    return save


def sharded(models: Sequence[Any]) -> bool:
    """Whether parameters are divided among ranks, so that a forward or a state_dict needs all of them (FSDP, DTensor, DeepSpeed)."""
    return any(
        hasattr(parameter, "_local_tensor")
        or hasattr(parameter, "ds_id")
        or type(parameter).__name__ == "FlatParameter"
        for model in models
        for parameter in model.parameters()
    )


def _forget(_result: Any) -> None:
    return None


def _call(model: Any, batch: Any) -> Any:
    """The model on a batch as its loader gives it: what forward has no place for is left out."""
    plain = getattr(model, "_orig_mod", model)  # without torch.compile around it
    parameters = inspect.signature(plain.forward).parameters.values()
    if isinstance(batch, Mapping):
        if any(each.kind is each.VAR_KEYWORD for each in parameters):
            return model(**batch)
        names = {each.name for each in parameters}
        return model(**{name: value for name, value in batch.items() if name in names})
    if not isinstance(batch, list | tuple):
        return model(batch)
    positional = [
        each
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    required = [each for each in positional if each.default is each.empty]
    if not required or any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return model(*batch)
    targets = list(
        takewhile(
            lambda each: any(each.name.startswith(n) for n in _TARGETS), positional[len(required) :]
        )
    )
    return model(*batch[: len(required) + len(targets)])


def _moved(value: Any, device: Any) -> Any:
    """The same batch with its tensors on `device`."""
    if isinstance(value, sys.modules["torch"].Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _moved(item, device) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_moved(item, device) for item in value]
    return value
