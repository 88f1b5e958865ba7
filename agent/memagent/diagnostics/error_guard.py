"""Containment of errors inside the agent: logged once a section, counted, never raised.

memagent's own tests set MEMAGENT_RAISE=1: then errors are raised, so that none of them can hide.
"""

from __future__ import annotations

import logging
from collections import Counter
from types import TracebackType

from memagent.diagnostics.console import notify_user
from memagent.errors import SettingError

logger = logging.getLogger("memagent")

MAX_REPORTED_MISTAKES = 5
"""Mistakes of a script that are reported: one in each step must not fill the terminal."""


class ErrorGuard:
    """`with guard.section("name"):` swallows errors; hot paths call `guard.caught(name, error)`.

    `errors` counts by section. A mistake of the script (SettingError) is reported in one line, an
    error of the agent is logged with its traceback. KeyboardInterrupt and SystemExit always pass.
    """

    def __init__(self, *, raise_errors: bool = False) -> None:
        self.raise_errors = raise_errors
        self.errors: Counter[str] = Counter()
        self._logged: set[str] = set()
        self._reported: set[str] = set()

    def section(self, name: str) -> _Section:
        return _Section(self, name)

    def caught(self, section: str, error: Exception) -> None:
        """Count `error`; report or log the first of its kind."""
        self.errors[section] += 1
        if self.raise_errors:
            raise error
        if isinstance(error, SettingError):
            message = str(error)
            if len(self._reported) < MAX_REPORTED_MISTAKES and message not in self._reported:
                self._reported.add(message)
                notify_user(message)
        elif section not in self._logged:
            self._logged.add(section)
            logger.warning(
                "memagent failed in %s and continues without it: %r", section, error, exc_info=error
            )


class _Section:
    __slots__ = ("_guard", "_name")

    def __init__(self, guard: ErrorGuard, name: str) -> None:
        self._guard = guard
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._guard.caught(self._name, error)
        return True
