"""The library's loop that calls a model, as far as the memory of a step depends on it.

Imported when the first inputs of a run arrive, not by `attach`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memagent.components.live_objects import instances

if TYPE_CHECKING:
    from memagent.estimator.formula.spec import Loop


@dataclass(frozen=True)
class CallingLoop:
    """The `loop` of a `TraceRequest`, and the forwards for one optimizer step."""

    loop: Loop = "step"
    accumulation: int = 1


def calling_loop() -> CallingLoop:
    """Return the loop of the transformers Trainer that trains right now, else the default.

    Models and optimizers have no reference to their Trainer, so it takes a pass over all objects:
    only if the script has imported the class.
    """
    module = sys.modules.get("transformers.trainer")
    kind = getattr(module, "Trainer", None)
    if kind is None:
        return CallingLoop()
    training = [item for item in instances(kind) if getattr(item, "is_in_train", False)]
    if len(training) != 1:
        return CallingLoop()
    return CallingLoop("trainer", _accumulation(training[0]))


def _accumulation(trainer: Any) -> int:
    """Return the configured micro-batches, or one if a subclass keeps them elsewhere."""
    steps = getattr(getattr(trainer, "args", None), "gradient_accumulation_steps", 1)
    return steps if isinstance(steps, int) and steps > 0 else 1
