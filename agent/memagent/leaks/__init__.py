"""Leak finding: `find` and `Finder` name the line that makes memory grow, and the fix for it.

diagnosis = memagent.leaks.find(train_step)  # runs it about twenty times
diagnosis.suspects[0].file, .line, .holder, .fix
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memagent.leaks.finder import Budget, Finder, find
    from memagent.leaks.suspect import Diagnosis, Kind, fix_for
    from memagent.wire.messages import Suspect

__all__ = ["Budget", "Diagnosis", "Finder", "Kind", "Suspect", "find", "fix_for"]

_MODULES = {
    **dict.fromkeys(("Budget", "Finder", "find"), "memagent.leaks.finder"),
    **dict.fromkeys(("Diagnosis", "Kind", "fix_for"), "memagent.leaks.suspect"),
    "Suspect": "memagent.wire.messages",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
