"""Which optimizer's steps are the run's steps, where there are several.

`FirstClock` is what `attach` promises: a step of the run is a step of the first optimizer. `AdaptiveClock` is for scripts that nobody
told us about (`memagent run`): optimizers appear, are made anew and go away while it runs.

1. The first optimizer is the clock. Each of its steps is one step of the run.
2. One that is made later for the same parameters replaces it: the script has made its optimizer anew.
3. If the clock is gone, whoever steps next is the clock.
4. If another one has stepped `patience` times since the clock last did, the script has gone on to train something else: that one
   becomes the clock, and the steps it made meanwhile are counted. Patience is 2 until the clock has ever stepped, then twice what the
   others have shown between two of its steps (a GAN's critic may step five times as often), and at least 8.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

_LEAST_PATIENCE = 8


class Clock(Protocol):
    def add(self, optimizer: Any) -> None:
        """One more optimizer from now on."""

    def ended(self, optimizer: Any) -> int:
        """`optimizer` has made a step: how many steps of the run that ends."""


class FirstClock:
    def __init__(self) -> None:
        self._first: weakref.ref[Any] | None = None

    def add(self, optimizer: Any) -> None:
        if self._first is None:
            self._first = weakref.ref(optimizer)

    def ended(self, optimizer: Any) -> int:
        return int(self._first is not None and self._first() is optimizer)


class AdaptiveClock:
    def __init__(self) -> None:
        self._clock: weakref.ref[Any] | None = None
        self._since: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._most = 0
        self._ticked = False

    def add(self, optimizer: Any) -> None:
        current = self._clock() if self._clock is not None else None
        if self._clock is None or (current is not None and shares_parameters(current, optimizer)):
            self._clock = weakref.ref(optimizer)

    def ended(self, optimizer: Any) -> int:
        current = self._clock() if self._clock is not None else None
        if current is optimizer:
            self._most = max(self._most, *self._since.values(), 0)
            self._since.clear()
            self._ticked = True
            return 1
        waited = self._since.get(optimizer, 0) + 1
        patience = (
            1
            if current is None
            else max(_LEAST_PATIENCE, 2 * self._most + 1)
            if self._ticked
            else 2
        )
        if waited < patience:
            self._since[optimizer] = waited
            return 0
        self._clock, self._ticked = weakref.ref(optimizer), True
        self._since.clear()
        return waited


def shares_parameters(one: Any, other: Any) -> bool:
    """Whether two optimizers have a parameter in common."""
    mine = {id(parameter) for group in one.param_groups for parameter in group["params"]}
    return any(
        id(parameter) in mine for group in other.param_groups for parameter in group["params"]
    )
