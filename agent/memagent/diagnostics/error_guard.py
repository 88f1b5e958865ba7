"""The one place where errors inside the agent end: logged once a place, counted, and never the training loop's problem.

In memagent's own tests (MEMAGENT_RAISE=1) they are raised instead, so that none of them can hide.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from types import TracebackType

from memagent.errors import SettingError

logger = logging.getLogger("memagent")

MOST_TOLD = 5
"""Mistakes of the script that are told: one that is made at every step must not fill the terminal."""


class ErrorGuard:
    """`with guard.at("place"):` swallows what goes wrong inside; `guard.caught(place, error)` is the same for hot paths.

    `errors` counts by place. What the script got wrong (SettingError) is told in a line; what we did is logged with its traceback.
    KeyboardInterrupt and SystemExit always pass.
    """

    def __init__(self, *, raise_errors: bool = False) -> None:
        self.raise_errors = raise_errors
        self.errors: Counter[str] = Counter()
        self._logged: set[str] = set()
        self._told: set[str] = set()

    def at(self, place: str) -> _Guarded:
        return _Guarded(self, place)

    def caught(self, place: str, error: Exception) -> None:
        """Take note of `error`; the first one of a place is logged."""
        self.errors[place] += 1
        if self.raise_errors:
            raise error
        if isinstance(error, SettingError):
            if len(self._told) < MOST_TOLD and str(error) not in self._told:
                self._told.add(str(error))
                tell(str(error))
        elif place not in self._logged:
            self._logged.add(place)
            logger.warning(
                "memagent failed in %s and goes on without it: %r", place, error, exc_info=error
            )


class _Guarded:
    __slots__ = ("_guard", "_place")

    def __init__(self, guard: ErrorGuard, place: str) -> None:
        self._guard, self._place = guard, place

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._guard.caught(self._place, error)
        return True


def tell(message: str) -> None:
    """One line for the person at the terminal, on stderr. A closed or broken stderr, or one that the script has replaced by something
    that can only write, is no reason to fail."""
    stream = sys.stderr  # None where the process was started without: print would take stdout then
    try:
        if stream is not None:
            stream.write(f"memagent: {message}\n")
            stream.flush()
    except Exception:  # noqa: BLE001
        logger.info(message)
