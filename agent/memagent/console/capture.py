"""Capture of `sys.stdout` and `sys.stderr`: everything that the process writes from now on.

1. The streams stay what they are: each gets an attribute `write` that calls its own, and appends
   the text to a queue. The queue is read on another thread.
2. Nothing waits, and nothing raises into the script: a text that can't be noted is dropped.
3. A queue that isn't read is cut to its newest MAX_CONSOLE_SIZE.
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
        self._lock = threading.Lock()
        self._removes: list[Callable[[], None]] = []

    def install(self) -> None:
        streams: dict[ConsoleStream, Any] = {"stdout": sys.stdout, "stderr": sys.stderr}
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
        with self._lock:
            # the queue grows meanwhile: what comes later is for the next time
            for _ in range(len(self._queue)):
                self.screen.write(*self._queue.popleft())
            self._queued = 0
        return self.screen

    def _listener(self, stream: ConsoleStream) -> Callable[[Any], None]:
        # bound here: at the interpreter's end a module's names are gone before its functions
        append, clock, limit = self._queue.append, time, MAX_CONSOLE_SIZE
        max_queued, overhead = _MAX_QUEUED, LINE_OVERHEAD

        def note(text: Any = None, *_others: Any) -> None:
            if type(text) is not str:
                return
            try:
                size = len(text)
                if size > limit:
                    text = text[-limit:]
                    size = limit
                sampler = self.sampler
                append((stream, sampler.step if sampler else 0, clock(), text))
                self._queued += size + overhead
                if self._queued > max_queued:
                    self._shed()
            except Exception:  # noqa: BLE001 - out of memory: the script has written its text
                self.dropped_writes += 1

        return note

    def _shed(self) -> None:
        """Drop the oldest writes. A signal handler may print here: never wait for the lock."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            queued, dropped = sum(len(write[3]) + LINE_OVERHEAD for write in list(self._queue)), 0
            while queued > MAX_CONSOLE_SIZE and self._queue:
                text = self._queue.popleft()[3]
                queued -= len(text) + LINE_OVERHEAD
                dropped += text.count("\n")
            self._queued = queued
            self.screen.skip(dropped)
        finally:
            self._lock.release()


def _wrap(stream: Any, note: Callable[[Any], None]) -> Callable[[], None] | None:
    """Have a stream's `write` call `note`. None for a stream that takes no attributes."""
    write = getattr(stream, "write", None)
    if write is None:
        return None
    own = vars(stream).get("write") if hasattr(stream, "__dict__") else None
    listeners = [note]

    def write_and_note(*arguments: Any, **keywords: Any) -> Any:
        count = write(*arguments, **keywords)
        for listener in listeners:
            listener(*arguments)
        return count

    with suppress(Exception):
        stream.write = write_and_note

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
