"""The one place where errors inside the agent end: logged once a place, counted, and never the training loop's problem.

In memagent's own tests (MEMAGENT_RAISE=1) they are raised instead, so that none of them can hide.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from types import TracebackType

logger = logging.getLogger("memagent")


class Guard:
    """`with guard.at("place"):` swallows what goes wrong inside; `guard.caught(place, error)` is the same for hot paths.

    `errors` counts by place. KeyboardInterrupt and SystemExit always pass.
    """

    def __init__(self, *, raise_errors: bool = False) -> None:
        self.raise_errors = raise_errors
        self.errors: Counter[str] = Counter()

    def at(self, place: str) -> _Guarded:
        return _Guarded(self, place)

    def caught(self, place: str, error: Exception) -> None:
        """Take note of `error`; the first one of a place is logged with its traceback."""
        self.errors[place] += 1
        if self.raise_errors:
            raise error
        if self.errors[place] == 1:
            logger.warning("memagent failed in %s and goes on without it: %r", place, error, exc_info=error)


class _Guarded:
    __slots__ = ("_guard", "_place")

    def __init__(self, guard: Guard, place: str) -> None:
        self._guard, self._place = guard, place

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._guard.caught(self._place, error)
        return True


def tell(message: str) -> None:
    """One line for the person at the terminal, on stderr. A closed or broken stderr is no reason to fail."""
    try:
        print(f"memagent: {message}", file=sys.stderr, flush=True)  # noqa: T201
    except (OSError, ValueError):
        logger.info(message)
