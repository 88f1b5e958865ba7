"""Containment of the agent's own errors, and its messages on stderr.

1. An error is logged once a section and counted, never raised; a MemoryError in one line.
   memagent's own tests set MEMAGENT_RAISE=1: then errors are raised, so that none can hide.
2. Messages show paths relative to the directory in which the run started. Only texts are shortened:
   recorded data keep absolute paths.
"""

from __future__ import annotations

import errno
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from memagent.errors import SettingError

logger = logging.getLogger("memagent")


def notify_user(message: str) -> None:
    """Print a message on stderr, after `memagent: `.

    Never fails: a script may have closed stderr, or replaced it by an object that can only write.
    """
    stream = sys.stderr  # None in a process without one: print() would write to stdout then
    try:
        if stream is not None:
            stream.write(f"memagent: {message}\n")
            stream.flush()
    except Exception:  # noqa: BLE001
        logger.info(message)


def display_roots(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the directories that a run's files are shown relative to.

    `environment` describes the run's process (docs/record.md): its working directory and the root
    of its git repository.
    """
    directories = (environment.get(name) for name in ("directory", "git_root"))
    return tuple(root for root in directories if isinstance(root, str) and len(root) > 1)


def display_path(file: str, roots: Sequence[str]) -> str:
    """Return `src/train.py`, or the whole path of a file that is in none of the directories."""
    for root in roots:
        prefix = root.rstrip("/") + "/"
        if file.startswith(prefix):
            return file.removeprefix(prefix)
    return file


def display_frame(frame: str, roots: Sequence[str]) -> str:
    """Shorten the path in a stack frame, `function (file:line)` or `file:line`."""
    function, bracket, location = frame.rpartition(" (")
    return f"{function}{bracket}{display_path(location, roots)}"


def with_display_path(item: Mapping[str, Any], roots: Sequence[str]) -> dict[str, Any]:
    """Return a suspect or a tensor as a dict whose `file` is shortened."""
    return {**item, "file": display_path(str(item.get("file") or ""), roots)}


ROOM_EVERY_S = 0.05
"""Pause before the next try where a script has no memory left."""


def outlast_memory_errors(work: Callable[[], None]) -> None:
    """Call `work`, and call it again after a MemoryError: a thread must not end with it.

    The script may free memory soon, at the latest when its own error ends it.
    """
    has_failed = False
    while True:
        try:
            if has_failed:
                time.sleep(ROOM_EVERY_S)
            return work()
        # nothing in the handlers takes memory: a second MemoryError there would not be caught
        except MemoryError:
            has_failed = True
        except RuntimeError as error:
            if error.args != _NO_LOCK:
                raise
            has_failed = True


_NO_LOCK = ("can't allocate lock",)
"""Arguments of the error that waiting for a condition or an event raises without memory."""

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
        # counted first: the report below may raise, in tests
        self.errors[section] += 1
        if self.raise_errors:
            raise error
        if isinstance(error, SettingError):
            message = str(error)
            if len(self._reported) < MAX_REPORTED_MISTAKES and message not in self._reported:
                self._reported.add(message)
                notify_user(message)
        elif getattr(error, "errno", None) == errno.EBADF:
            return  # the script has closed all files: they are opened again
        elif section not in self._logged:
            self._logged.add(section)
            if isinstance(error, MemoryError):
                # the script's own error follows: a traceback of the agent would only hide it
                logger.warning("memagent had no memory left for %s and goes on without it", section)
                return
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
