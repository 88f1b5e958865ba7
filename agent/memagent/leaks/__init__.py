"""Leak finding: `find` and `Finder` name the line that makes memory grow, and the fix for it.

diagnosis = memagent.leaks.find(train_step)  # runs it about twenty times
diagnosis.suspects[0].file, .line, .holder, .fix
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memagent.leaks.finder import Finder
    from memagent.leaks.suspect import Diagnosis, Kind, fix_for
    from memagent.leaks.time_budgets import Budget
    from memagent.wire.messages import Suspect

__all__ = ["Budget", "Diagnosis", "Finder", "Kind", "Suspect", "find", "fix_for"]

_MODULES = {
    "Finder": "memagent.leaks.finder",
    **dict.fromkeys(("Diagnosis", "Kind", "fix_for"), "memagent.leaks.suspect"),
    "Budget": "memagent.leaks.time_budgets",
    "Suspect": "memagent.wire.messages",
}
WINDOW_STEPS = 20
MIN_STEPS = 4


def find(
    train_step: Callable[[], object],
    steps: int = WINDOW_STEPS,
    *,
    history: bool = False,
    host: bool = False,
) -> Diagnosis:
    """Run `train_step` some times and return what holds the memory that grows meanwhile.

    For a REPL, a notebook or a test:

        diagnosis = memagent.leaks.find(lambda: train_step(model, batch))
        for suspect in diagnosis.suspects:
            print(suspect.file, suspect.line, suspect.holder, suspect.fix)

    steps: length of the window; use more for what grows rarely. history and host: see
    `Finder.request`. Exceptions of `train_step` are raised. Raises ValueError for too few steps.
    """
    from memagent.leaks.finder import Finder

    if steps < MIN_STEPS:
        raise ValueError(f"Too few steps to see growth ({steps}): use at least {MIN_STEPS}.")
    finder = Finder(window=steps, max_slice_s=math.inf)  # the caller waits for the result
    finder.request(history=history, host=host)
    diagnosis, step = None, 0
    try:
        while diagnosis is None:
            train_step()
            step += 1
            diagnosis = finder.after_step(step)
    finally:
        finder.close()
    return diagnosis


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
