"""Forked process per measurement: torch and the models' code are imported once, and nothing else is
shared. `call` runs one and waits; `outcomes` runs many side by side.
"""

from __future__ import annotations

import math
import os
import pickle
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")
_LENGTH_BYTES = 8
_POLL_S = 0.05


@dataclass(frozen=True)
class Outcome(Generic[Answer]):
    """Result of a call: `value`, or `error` in one line; `seconds` is the duration."""

    value: Answer | None = None
    error: str = ""
    seconds: float | None = None


@dataclass(frozen=True)
class Task(Generic[Answer]):
    """A call to make. `cost_bytes` is the memory of the device that it is expected to take.

    `timeout_s` is wall time, `budget_s` processor time: others on the machine don't shorten it.
    """

    name: str
    function: Callable[[], Answer]
    cost_bytes: int = 0
    timeout_s: float = 300.0
    budget_s: int | None = None


def call(
    function: Callable[[], Answer],
    *,
    timeout_s: float = 300.0,
    budget_s: int | None = None,
    log: Path | None = None,
) -> Outcome[Answer]:
    """Run `function` in a forked child. Return its result or why there is none, be it a crash or a
    hang.

    The child's output goes to `log`, or is discarded.
    """
    task = Task("", function, timeout_s=timeout_s, budget_s=budget_s)
    ((_, outcome),) = outcomes([task], log=log)
    return outcome


def outcomes(
    tasks: Iterable[Task[Answer]],
    *,
    jobs: int = 1,
    budget_bytes: int | None = None,
    seconds: float | None = None,
    log: Path | None = None,
) -> Iterator[tuple[Task[Answer], Outcome[Answer]]]:
    """Run the tasks in their order, up to `jobs` at a time, each in a forked child. Yield each with
    its result as it ends.

    A task waits until its cost and those of the others fit into `budget_bytes`, or it is alone.
    The cost of a child counts until it is gone: freeing a device's memory takes a while. After `seconds` no task begins, and those that run are killed.
    """
    ends_at = time.monotonic() + seconds if seconds is not None else math.inf
    waiting = iter(tasks)
    following = next(waiting, None)
    running: list[_Child[Answer]] = []
    leaving: list[_Child[Answer]] = []
    try:
        while running or (following is not None and time.monotonic() < ends_at):
            leaving = [child for child in leaving if not child.has_left()]
            while following is not None and time.monotonic() < ends_at:
                others = sum(child.task.cost_bytes for child in [*running, *leaving])
                has_space = budget_bytes is None or others + following.cost_bytes <= budget_bytes
                if running and (len(running) >= jobs or not has_space):
                    break
                running.append(_Child(following, log))
                following = next(waiting, None)
            for child in _ended(running, ends_at, _POLL_S if leaving else math.inf):
                running.remove(child)
                leaving.append(child)
                yield child.task, child.collect(is_over=time.monotonic() >= ends_at)
    finally:
        for child in running:
            child.collect(is_over=True)
        for child in [*running, *leaving]:
            child.has_left(wait=True)


def _ended(running: list[_Child[Answer]], ends_at: float, at_most_s: float) -> list[_Child[Answer]]:
    """Wait until a child has answered or died, or its time is over, but not longer than asked."""
    first = min([ends_at, *(child.deadline for child in running)])
    wait_s = min(at_most_s, max(0.0, first - time.monotonic()))
    for child in select.select(running, [], [], wait_s)[0]:
        child.read()
    now = time.monotonic()
    return [child for child in running if child.is_done or now >= min(child.deadline, ends_at)]


class _Child(Generic[Answer]):
    """A forked child that runs a task and sends its result through a pipe, its length first.

    The length tells the end even if a process that the child has left behind holds the pipe.
    """

    def __init__(self, task: Task[Answer], log: Path | None) -> None:
        self.task = task
        self.deadline = time.monotonic() + task.timeout_s
        self._received = b""
        self._is_closed = False
        self._is_reaped = False
        self._status = 0
        self._reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._reader)
            _work(task, writer, log)
        os.close(writer)

    def fileno(self) -> int:
        return self._reader

    def read(self) -> None:
        piece = os.read(self._reader, 1 << 16)
        self._received += piece
        self._is_closed = not piece

    @property
    def is_done(self) -> bool:
        return self._is_closed or self._message is not None

    @property
    def _message(self) -> bytes | None:
        length = int.from_bytes(self._received[:_LENGTH_BYTES], "little")
        body = self._received[_LENGTH_BYTES:]
        return body if length and len(body) >= length else None

    def collect(self, *, is_over: bool) -> Outcome[Answer]:
        """Return the result. A child that is still at work is killed."""
        if not self.is_done:
            os.kill(self._pid, signal.SIGKILL)
        os.close(self._reader)
        message = self._message
        if message is not None:
            return Outcome(*pickle.loads(message))
        self.has_left(wait=True)
        if self._is_closed:
            return Outcome(error=self._death())
        return Outcome(
            error="no time is left" if is_over else f"not done after {self.task.timeout_s:g} s"
        )

    def _death(self) -> str:
        if os.WIFSIGNALED(self._status) and os.WTERMSIG(self._status) == signal.SIGXCPU:
            return f"not done after {self.task.budget_s} s of processor time"
        return f"the process died: {_death(self._status)}"

    def has_left(self, *, wait: bool = False) -> bool:
        """Return whether the child is gone, and reap it."""
        if not self._is_reaped:
            pid, self._status = os.waitpid(self._pid, 0 if wait else os.WNOHANG)
            self._is_reaped = pid != 0
        return self._is_reaped


def _work(task: Task[Any], writer: int, log: Path | None) -> None:
    """Run the child. It ends without exit handlers, which belong to the parent."""
    try:
        if task.budget_s is not None:
            # at the hard limit the kernel kills, which would look like a lack of memory
            resource.setrlimit(resource.RLIMIT_CPU, (task.budget_s, task.budget_s + 10))
        output = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        began = time.perf_counter()
        try:
            value, error = task.function(), ""
        except BaseException as failure:  # noqa: BLE001 - whatever it is, it is a row of the table
            value, error = None, _one_line(failure)
            traceback.print_exc()
        message = pickle.dumps((value, error, time.perf_counter() - began))
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(len(message).to_bytes(_LENGTH_BYTES, "little") + message)
    finally:
        os._exit(0)


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit status {os.waitstatus_to_exitcode(status)}"


def _one_line(failure: BaseException) -> str:
    lines = str(failure).strip().splitlines()
    return f"{type(failure).__name__}: {lines[0][:160]}" if lines else type(failure).__name__
