"""The lines of one run's console that its batches carry.

1. Lines are sent as they change, the newest first, at most RATE characters a second after a burst
   of one console. Those that were left out follow when there is room, or with the run's last batch.
2. Rank 0 sends them while it runs. Another rank sends its last lines if it dies.
3. Secrets are masked before lines leave the process: those of known forms, of names such as
   `api_key=`, and the values of environment variables with such names.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Mapping

from memagent.console.capture import ConsoleCapture, StepCounter, acquire_capture, release_capture
from memagent.console.screen import Screen, ScreenLine
from memagent.record.masking import MASK, is_secret_name, mask_line
from memagent.wire.console import MAX_CONSOLE_SIZE
from memagent.wire.messages import MAX_CONSOLE_LINE, ConsoleLine

RATE = 4096.0
"""Characters a second: a script that prints without an end sends 14 MB an hour, packed 2 MB."""
_MIN_SECRET = 8
"""Shorter values of variables are words that occur anywhere."""


class ConsoleLog:
    """Takes lines of a capture for one run; on the collector's thread, and at the end."""

    def __init__(
        self,
        capture: ConsoleCapture,
        *,
        is_live: bool,
        environ: Mapping[str, str] = os.environ,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.capture = capture
        self.is_live = is_live
        self._sampler = capture.sampler
        self._monotonic = monotonic
        self._first = capture.first_number
        self._versions: dict[int, int] = {}
        """Versions of lines by number."""
        self._version = -1
        self._room = float(MAX_CONSOLE_SIZE)
        self._filled_at = monotonic()
        self._environ = environ
        self._variables = -1
        """Their number when secrets were read: a script adds some, of a file or a login."""
        self._secrets: list[str] = []

    @classmethod
    def open(cls, sampler: StepCounter, *, is_live: bool) -> ConsoleLog:
        """Return the log of a run, whose lines get the steps of `sampler`."""
        capture = acquire_capture()
        capture.sampler = sampler
        return cls(capture, is_live=is_live)

    def close(self, *, is_over: bool) -> None:
        """End the capture. A run that goes on elsewhere leaves its lines to that one, too."""
        if self.capture.sampler is self._sampler:  # else that of another run
            self.capture.sampler = None
        if is_over:
            self.capture.first_number = self.capture.drain().next_number
        release_capture()

    def take(self, *, is_last: bool = False) -> list[ConsoleLine]:
        """Return the lines to send now, oldest first; with `is_last` all that weren't sent."""
        if not (self.is_live or is_last):
            return []
        screen = self.capture.drain()
        version = screen.version
        if version == self._version:
            return []
        now = self._monotonic()
        refilled = self._room + RATE * (now - self._filled_at)
        room = self._room = float("inf") if is_last else min(refilled, MAX_CONSOLE_SIZE)
        self._filled_at = now
        changed = self._changed(screen)
        chosen: list[ScreenLine] = []
        for line in reversed(changed):
            room -= line.size
            if room < 0:
                break
            chosen.append(line)
            self._room = room
        if len(chosen) == len(changed):
            self._version = version
        self._versions |= {line.number: line.version for line in chosen}
        if len(self._environ) != self._variables:
            self._variables = len(self._environ)
            self._secrets = _secrets_of(self._environ)
        return [self._message(line) for line in reversed(chosen)]

    def add_error(self, error: BaseException) -> None:
        """Add the traceback that Python prints once the run has ended."""
        if isinstance(error, SystemExit):
            text = error.code if isinstance(error.code, str) else ""
        else:
            text = "".join(traceback.format_exception(error))
        if text:
            self.capture.add("stderr", f"{text.rstrip()}\n")

    def _changed(self, screen: Screen) -> list[ScreenLine]:
        lines = dict(screen.lines)  # another run of the process may drain meanwhile
        self._versions = {
            number: version for number, version in self._versions.items() if number in lines
        }
        return [
            line
            for line in lines.values()
            if line.number >= self._first and self._versions.get(line.number) != line.version
        ]

    def _message(self, line: ScreenLine) -> ConsoleLine:
        text = line.text
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        text = mask_line(text)
        if not text.isascii():  # bytes of file names that no encoding has
            text = text.encode("utf-8", "backslashreplace").decode()
        if len(text) > MAX_CONSOLE_LINE:
            text = f"{text[: MAX_CONSOLE_LINE - 1]}…"
        return ConsoleLine(
            number=line.number, text=text, stream=line.stream, step=line.step, time_s=line.time_s
        )


def _secrets_of(environ: Mapping[str, str]) -> list[str]:
    # by name: others may be deleted meanwhile
    values = {environ.get(name, "") for name in list(environ) if is_secret_name(name)}
    return sorted((value for value in values if len(value) >= _MIN_SECRET), key=len, reverse=True)
