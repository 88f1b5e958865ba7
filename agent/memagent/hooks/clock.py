"""Decides which optimizer's steps are the run's steps, if there are several.

`FirstClock` is what `attach` promises: the steps of the first optimizer count. `AdaptiveClock` is
for scripts that `memagent run` starts: optimizers appear, are replaced and vanish while it runs.

1. The first optimizer is the clock. Each of its steps is one step of the run.
2. A later optimizer of the same parameters replaces it: the script has recreated its optimizer.
3. If the clock is gone, the optimizer that steps next is the clock.
4. If another optimizer has stepped `patience` times since the clock last did, the script now trains
   something else. That optimizer becomes the clock, and these steps are counted.
   Patience is 2 until the clock has ever stepped. Then it is twice the number of steps that others
   have made between two of the clock's (a GAN's critic may step five times as often), at least 8.
5. Patience is 2, too, for an optimizer that was created after the clock's last step, if no other
   one stepped between the clock's last three: a study keeps the optimizers of its short trials.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

_MIN_PATIENCE = 8
_INITIAL_PATIENCE = 2
_STEPS_ALONE = 3


class Clock(Protocol):
    def add(self, optimizer: Any) -> None:
        """Add an optimizer."""

    def steps_ended(self, optimizer: Any) -> int:
        """Return how many steps of the run have ended, now that `optimizer` has stepped."""


class FirstClock:
    def __init__(self) -> None:
        self._first: weakref.ref[Any] | None = None

    def add(self, optimizer: Any) -> None:
        if self._first is None:
            self._first = weakref.ref(optimizer)

    def steps_ended(self, optimizer: Any) -> int:
        return int(self._first is not None and self._first() is optimizer)


class AdaptiveClock:
    def __init__(self) -> None:
        self._clock: weakref.ref[Any] | None = None
        self._steps_since: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._max_steps_between = 0
        self._has_stepped = False
        self._steps_alone = 0
        """Steps of the clock since another optimizer stepped."""
        self._newer: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that were added after the clock's last step."""

    def add(self, optimizer: Any) -> None:
        current = self._clock() if self._clock is not None else None
        # a clock that is gone stays until the next optimizer steps: rule 3
        if self._clock is None or (current is not None and shares_parameters(current, optimizer)):
            self._clock = weakref.ref(optimizer)
        else:
            self._newer.add(optimizer)

    def steps_ended(self, optimizer: Any) -> int:
        current = self._clock() if self._clock is not None else None
        if current is optimizer:
            self._max_steps_between = max(self._max_steps_between, *self._steps_since.values(), 0)
            self._steps_alone = 1 if self._steps_since else self._steps_alone + 1
            return self._count(1)
        steps = self._steps_since.get(optimizer, 0) + 1
        if current is not None and steps < self._patience(optimizer):
            self._steps_since[optimizer] = steps
            return 0
        self._clock = weakref.ref(optimizer)
        self._steps_alone = steps
        return self._count(steps)

    def _count(self, steps: int) -> int:
        self._has_stepped = True
        self._steps_since.clear()
        self._newer.clear()
        return steps

    def _patience(self, optimizer: Any) -> int:
        follows = optimizer in self._newer and self._steps_alone >= _STEPS_ALONE
        if follows or not self._has_stepped:
            return _INITIAL_PATIENCE
        return max(_MIN_PATIENCE, 2 * self._max_steps_between + 1)


def shares_parameters(first: Any, second: Any) -> bool:
    """Return True if two optimizers have a parameter in common."""
    # by id: == of tensors compares their values
    parameters = {id(item) for group in first.param_groups for item in group["params"]}
    return any(id(item) in parameters for group in second.param_groups for item in group["params"])
