"""The request of a preflight, and its validation."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memagent.errors import SettingError

_EXPECTED = 'pass True, a batch, or {"eval_batch": ..., "checkpoint": ...}'
_MAX_DEPTH = 3
"""Levels of nesting in which a batch's tensors are looked for."""


@dataclass(frozen=True)
class PreflightRequest:
    """The tasks to try.

    eval_batch: a batch as the model takes it (tensor, sequence or mapping), or a callable that
    evaluates once; None for no evaluation. checkpoint: True saves models and optimizers with
    torch.save to nowhere; a callable saves as the script does; False for no checkpoint.
    """

    eval_batch: Any = None
    checkpoint: Any = True

    @classmethod
    def validated(cls, eval_batch: Any = None, checkpoint: Any = True) -> PreflightRequest:
        """Make a request. Raises SettingError for invalid arguments."""
        # by attributes: a loader need not be torch's class
        if hasattr(eval_batch, "batch_sampler") or hasattr(eval_batch, "__next__"):
            raise SettingError(
                "eval_batch is a loader: pass one of its batches, as in next(iter(loader))."
            )
        if eval_batch is not None and not callable(eval_batch) and not _has_tensor(eval_batch):
            raise SettingError(
                "eval_batch must be a batch of tensors as the model takes it, or a callable that "
                f"evaluates once; got a {type(eval_batch).__name__}."
            )
        if callable(checkpoint):
            return cls(eval_batch, checkpoint)
        if checkpoint is not None and not isinstance(checkpoint, bool):
            raise SettingError(
                f"checkpoint must be True, False, or a callable that saves one; got {checkpoint!r}."
            )
        return cls(eval_batch, bool(checkpoint))


def parse_preflight(value: Any) -> PreflightRequest | None:
    """Return the request of `preflight=`, or None if it requests nothing.

    Raises SettingError for an invalid value.
    """
    if value is None or value is False:
        return None
    if value is True:
        return PreflightRequest()
    options = value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        options = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(options, Mapping) and _are_options(options):
        return PreflightRequest.validated(**options)
    if callable(value) or not _has_tensor(value):
        raise SettingError(f"preflight cannot be a {type(value).__name__}: {_EXPECTED}.")
    return PreflightRequest(eval_batch=value)


def _are_options(mapping: Mapping[Any, Any]) -> bool:
    """Return True if the keys are those of a request: a batch may be a mapping too.

    Raises SettingError for a mixture of both.
    """
    names = {field.name for field in dataclasses.fields(PreflightRequest)}
    unknown = sorted(str(name) for name in mapping if name not in names)
    if unknown and len(unknown) < len(mapping):
        raise SettingError(f"Unknown preflight options: {', '.join(unknown)}; {_EXPECTED}.")
    return bool(mapping) and not unknown


def _has_tensor(value: Any, depth: int = _MAX_DEPTH) -> bool:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return True
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return False
    return depth > 0 and any(_has_tensor(item, depth - 1) for item in value)
