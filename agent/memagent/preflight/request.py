"""What a preflight was asked to try."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memagent.errors import SettingError

_WHAT_TO_GIVE = 'give True, a batch, or {"eval_batch": ..., "checkpoint": ...}'
_DEPTH = 3


@dataclass(frozen=True)
class Request:
    """eval_batch: a batch as the model takes it (tensor, sequence or mapping), or a callable that evaluates once; None tries none.

    checkpoint: True saves models and optimizers with torch.save into nothing; a callable saves as the script does; False tries none.
    """

    eval_batch: Any = None
    checkpoint: Any = True


def requested(value: Any) -> Request | None:
    """What `preflight=` asks for; None where it asks for nothing. Raises SettingError for what makes no sense."""
    if value is None or value is False:
        return None
    if value is True:
        return Request()
    if (
        dataclasses.is_dataclass(value)
        and not isinstance(value, type)
        and _names_ours(_fields(value))
    ):
        return checked(**_fields(value))
    if isinstance(value, Mapping) and _names_ours(value):
        return checked(**value)
    if callable(value) or not _holds_tensor(value):
        raise SettingError(f"preflight is a {type(value).__name__}: {_WHAT_TO_GIVE}")
    return Request(eval_batch=value)


def _names_ours(given: Mapping[Any, Any]) -> bool:
    """Whether it names what to try; a batch may be a mapping too. Raises SettingError for one that is a bit of both."""
    ours = {field.name for field in dataclasses.fields(Request)}
    strange = sorted(str(name) for name in given if name not in ours)
    if strange and len(strange) < len(given):
        raise SettingError(f"preflight has no {', '.join(strange)}: {_WHAT_TO_GIVE}")
    return bool(given) and not strange


def checked(eval_batch: Any = None, checkpoint: Any = True) -> Request:
    """A request for these two. Raises SettingError for what makes no sense."""
    if hasattr(eval_batch, "batch_sampler") or hasattr(eval_batch, "__next__"):
        raise SettingError("eval_batch is a loader: give one batch of it, as in next(iter(loader))")
    if eval_batch is not None and not callable(eval_batch) and not _holds_tensor(eval_batch):
        raise SettingError(
            f"eval_batch is a {type(eval_batch).__name__}: give a batch of tensors as the model takes it, or a callable that evaluates once"
        )
    if checkpoint is not None and not isinstance(checkpoint, bool) and not callable(checkpoint):
        raise SettingError(
            f"checkpoint is {checkpoint!r}: give True, False, or a callable that saves one"
        )
    return Request(eval_batch, bool(checkpoint) if not callable(checkpoint) else checkpoint)


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _holds_tensor(value: Any, depth: int = _DEPTH) -> bool:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return True
    items = (
        value.values()
        if isinstance(value, Mapping)
        else value
        if isinstance(value, list | tuple)
        else ()
    )
    return depth > 0 and any(_holds_tensor(item, depth - 1) for item in items)
