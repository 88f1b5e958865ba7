"""memagent: a memory-aware experiment tracker for PyTorch.

    run = memagent.attach(model, optimizer)
    memagent.Api().runs(where="peak_ratio > 0.9")
    memagent.estimate(model, inputs, gpu="a100")
    plan = memagent.fit(model, optimizer, batch, limit="24GiB")
    memagent.rehearse("train.py", gpu="a100")

Importing this takes milliseconds: it imports neither torch nor anything else heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memagent.attach import attach
from memagent.errors import MemagentError, SettingError

if TYPE_CHECKING:
    from memagent import forecast, leaks
    from memagent.api.client import Api
    from memagent.estimator.api import estimate
    from memagent.fitting.api import fit
    from memagent.rehearsal.api import rehearse
    from memagent.run import Run
    from memagent.wire.messages import Command, Risk

__version__ = "0.1.0"
__all__ = [
    "Api",
    "Command",
    "MemagentError",
    "Risk",
    "Run",
    "SettingError",
    "__version__",
    "attach",
    "estimate",
    "fit",
    "forecast",
    "leaks",
    "rehearse",
]

_LAZY = {
    "Api": "memagent.api.client",
    "estimate": "memagent.estimator.api",
    "fit": "memagent.fitting.api",
    "rehearse": "memagent.rehearsal.api",
    "Run": "memagent.run",
    "Risk": "memagent.wire.messages",
    "Command": "memagent.wire.messages",
}
_LAZY_MODULES = ("forecast", "leaks")


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _LAZY_MODULES:
        return import_module(f"memagent.{name}")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'memagent' has no attribute {name!r}")
