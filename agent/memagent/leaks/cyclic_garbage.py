"""Garbage in reference cycles: it waits for the collector, and no reading may count it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from memagent.components.live_objects import OLD_GENERATION

_MIN_FOUND = 2
"""Objects per step."""
_MAX_OWN = 50
"""Objects that the agent's own work makes between two readings: 26 were seen in 19 steps."""


class CyclicGarbage:
    """Collects it before readings, since the first of which it notes how much there is.

    1. Young objects are collected each time, in a millisecond. What is left of them is old then.
    2. All objects are collected only if the script makes cycles: collections have found two objects
       for each step. That takes 50 ms per 100,000 objects, and can't be cut, so it's left out one
       step after another one, and so is the last check right after one.
    3. Nothing is collected if the script has switched the collector off: what waits is a leak.
    """

    def __init__(self) -> None:
        self._first = _count()
        self._full_steps: int | None = None
        """Steps after which all objects were collected last."""

    def collect(self, steps: int) -> None:
        """Collect garbage `steps` after the beginning."""
        make_old()
        makes_cycles = _count() - self._first >= _MAX_OWN + _MIN_FOUND * steps
        if makes_cycles and may_collect() and not self._is_none_left(steps):
            gc.collect()
            self._full_steps = steps

    def collect_old(self, steps: int) -> bool:
        """Collect all objects, unless `collect` did. Return True if the script's cycles waited."""
        make_old()
        is_waiting = may_collect() and not self._is_none_left(steps)
        return is_waiting and gc.collect() >= _MIN_FOUND * steps

    def _is_none_left(self, steps: int) -> bool:
        """Return True if all objects were collected after these steps or the one before."""
        return self._full_steps is not None and steps - self._full_steps <= 1

    @contextmanager
    def own(self) -> Iterator[None]:
        """Leave out what the agent's own work makes meanwhile, and collect that."""
        before = _count()
        try:
            yield
        finally:
            make_old()
            self._first += _count() - before


def may_collect() -> bool:
    """Return False if the script has switched the collector off: then its cycles stay for good."""
    return bool(_SUSPENDED) or gc.isenabled()


def make_old() -> None:
    """Make all objects old, so that what is young later is new. Collect young garbage before.

    Without a collector, freezing and thawing does the same, and collects nothing.
    """
    if may_collect():
        gc.collect(OLD_GENERATION - 1)
    elif not gc.get_freeze_count():  # what the script has frozen must stay so
        gc.freeze()
        gc.unfreeze()


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage meanwhile, unless asked to.

    A search makes and drops many lists. A collection in between would make those old that exist
    just then, and enough of them make the collector look at all objects, within the search. A
    process that another thread forks meanwhile collects as the script had it.
    """
    if not gc.isenabled():
        yield
        return
    try:
        _SUSPENDED.append(True)
        gc.disable()
        yield
    finally:
        gc.enable()
        _SUSPENDED.clear()


def resume() -> None:
    """Let the collector go on if `uncollected` hasn't ended as it should.

    A signal handler may raise where its end begins: before anything is undone.
    """
    if _SUSPENDED:
        gc.enable()
        _SUSPENDED.clear()


def _count() -> int:
    """Return how many objects all collections have found to be garbage."""
    return sum(generation["collected"] for generation in gc.get_stats())


_SUSPENDED: list[bool] = []
"""Has an entry while a search has disabled the collector."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=resume)
