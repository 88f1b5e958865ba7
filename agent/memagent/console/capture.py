"""Capture of `sys.stdout` and `sys.stderr`: everything that the process writes from now on.

1. The streams stay what they are: each gets an attribute `write` that calls its own, and appends
   the text to a queue. The queue is read on another thread.
2. Nothing waits, and nothing raises into the script: a text that can't be noted is dropped. Only
   what a signal handler of the script raises meanwhile passes.
3. A queue that isn't read is cut to its newest MAX_CONSOLE_SIZE, from the beginning of a line.
4. A forked child isn't captured, and neither is output below these streams, by C or `os.write`, or
   to another object that the script puts in their place.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import time
from typing import Any, Protocol

from memagent.console.screen import Screen
from memagent.wire.console import LINE_OVERHEAD, MAX_CONSOLE_SIZE
from memagent.wire.messages import ConsoleStream

_MAX_QUEUED = 2 * MAX_CONSOLE_SIZE
_MIN_KEPT = MAX_CONSOLE_SIZE // 2
"""Of output without ends of lines this much is kept."""
_DRAIN_TIMEOUT_S = 1.0
"""A signal handler that ends a run may have interrupted the drain that it waits for."""
Write = tuple[ConsoleStream, int, float, str]


class StepCounter(Protocol):
    """The part of a `Sampler` that a capture reads."""

    @property
    def step(self) -> int: ...


class ConsoleCapture:
    """The screen of this process's output. `sampler` counts the steps of the run."""

    def __init__(self) -> None:
        self.screen = Screen()
        self.sampler: StepCounter | None = None
        self.first_number = 0
        """The first line that belongs to a run that starts now."""
        self.users = 0
        self.dropped_writes = 0
        self._queue: deque[Write] = deque()
        self._queued = 0
        self._skipped = 0
        """Lines that were dropped since the last drain."""
        self._lock = threading.Lock()
        self._removes: list[Callable[[], None]] = []

    def install(self) -> None:
        streams: dict[ConsoleStream, Any] = {"stdout": sys.stdout}
        if sys.stderr is not sys.stdout:
            streams["stderr"] = sys.stderr
        for name, stream in streams.items():
            if (remove := _wrap(stream, self._listener(name))) is not None:
                self._removes.append(remove)

    def remove(self) -> None:
        while self._removes:
            self._removes.pop()()

    def add(self, stream: ConsoleStream, text: str) -> None:
        """Note what will be written after the run has ended."""
        self._listener(stream)(text)

    def drain(self) -> Screen:
        """Return the screen with everything that was written until now."""
        if not self._lock.acquire(timeout=_DRAIN_TIMEOUT_S):
            return self.screen
        try:
            skipped, self._skipped = self._skipped, 0
            self.screen.skip(skipped)
            # the queue grows meanwhile, or is cut: what comes later is for the next time
            with suppress(IndexError):
                for _ in range(len(self._queue)):
                    self.screen.write(*self._queue.popleft())
            self._queued = 0
        finally:
            self._lock.release()
        return self.screen

    def _listener(self, stream: ConsoleStream) -> Callable[[Any], None]:
        # bound here: at the interpreter's end a module's names are gone before its functions
        append, clock, limit = self._queue.append, time, MAX_CONSOLE_SIZE
        max_queued, overhead, newest_of = _MAX_QUEUED, LINE_OVERHEAD, _newest_of

        def note(text: Any = None, *_others: Any) -> None:
            if type(text) is not str:
                return
            try:
                size = len(text)
                if size > limit:
                    text = newest_of(text, limit)
                    size = len(text)
                sampler = self.sampler
                append((stream, sampler.step if sampler else 0, clock(), text))
                self._queued += size + overhead
                if self._queued > max_queued:
                    self._shed()
            except MemoryError:  # the script has written its text
                self.dropped_writes += 1

        return note

    def _shed(self) -> None:
        """Drop the oldest writes. Without a lock, as a signal handler may print here, and raise."""
        queue, text, dropped = self._queue, "", 0
        self._queued = sum(len(write[3]) + LINE_OVERHEAD for write in list(queue))
        with suppress(IndexError):  # it's read meanwhile
            while self._queued > MAX_CONSOLE_SIZE or (
                # the rest of a line may be a secret without its name
                not (text.endswith("\n") or queue[0][3].startswith("\r"))
                and self._queued > _MIN_KEPT
            ):
                text = queue.popleft()[3]
                self._queued -= len(text) + LINE_OVERHEAD
                dropped += text.count("\n")
        self._skipped += dropped


def _newest_of(text: str, limit: int) -> str:
    """Return the end of a text from the beginning of a line, or the beginning of its last line."""
    start = text.find("\n", len(text) - limit)
    if 0 <= start < len(text) - 1:
        return text[start:]
    start = text.rfind("\n", 0, len(text) - 1) + 1
    return text[start : start + limit] + ("\n" if text.endswith("\n") else "")


def _wrap(stream: Any, note: Callable[[Any], None]) -> Callable[[], None] | None:
    """Have a stream's `write` call `note`. None for a stream that takes no attributes."""
    with suppress(Exception):  # any object may be in a stream's place
        write = stream.write
        own = vars(stream).get("write") if hasattr(stream, "__dict__") else None
        listeners = [note]

        def write_and_note(*arguments: Any, **keywords: Any) -> Any:
            count = write(*arguments, **keywords)
            for listener in listeners:
                listener(*arguments)
            return count

        def remove() -> None:
            listeners.clear()
            # below a wrapper of other code ours stays, and does nothing
            with suppress(Exception):
                if vars(stream).get("write") is not write_and_note:
                    return
                if own is None:
                    del stream.write
                else:
                    stream.write = own

        stream.write = write_and_note
        return remove
    return None


_active: ConsoleCapture | None = None


def active_capture() -> ConsoleCapture | None:
    """Return the capture of this process, None if there is none."""
    return _active


def acquire_capture() -> ConsoleCapture:
    """Return the capture of this process, which starts with its first user."""
    global _active  # noqa: PLW0603 - a process has one console
    if _active is None:
        _active = ConsoleCapture()
        _active.install()
    _active.users += 1
    return _active


def release_capture() -> None:
    """End the capture with its last user."""
    global _active  # noqa: PLW0603
    if _active is None:
        return
    _active.users -= 1
    if _active.users <= 0:
        _active.remove()
        _active = None


def _forget() -> None:
    global _active  # noqa: PLW0603
    if _active is not None:
        _active.remove()
        _active = None


os.register_at_fork(after_in_child=_forget)
