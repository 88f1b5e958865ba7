"""Forked process per measurement: torch and the models' code are imported once, and nothing else is
shared.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Outcome(Generic[Answer]):
    """Result of a call: `value`, or `error` in one line; `seconds` is the duration."""

    value: Answer | None = None
    error: str = ""
    seconds: float | None = None


def call(
    function: Callable[[], Answer], *, timeout_s: float = 300.0, log: Path | None = None
) -> Outcome[Answer]:
    """Run `function` in a forked child. Return its result or why there is none, be it a crash or a
    hang.

    The child's output goes to `log`, or is discarded.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _work(function, writer, log)
    os.close(writer)
    try:
        received = _read(reader, timeout_s)
        if received is None:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(reader)
        status = os.waitpid(child, 0)[1]
    if received is None:
        return Outcome(error=f"not done after {timeout_s:g} s")
    if not received:
        return Outcome(error=f"the process died: {_death(status)}")
    return Outcome(*pickle.loads(received))


def _work(function: Callable[[], Any], writer: int, log: Path | None) -> None:
    """Run the child. It ends without exit handlers, which belong to the parent."""
    try:
        output = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        began = time.perf_counter()
        try:
            value, error = function(), ""
        except BaseException as failure:  # noqa: BLE001 - whatever it is, it is a row of the table
            value, error = None, _one_line(failure)
            traceback.print_exc()
        message = pickle.dumps((value, error, time.perf_counter() - began))
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(message)
    finally:
        os._exit(0)


def _read(reader: int, timeout_s: float) -> bytes | None:
    """Read until the pipe closes. Return None after the timeout."""
    received, deadline = b"", time.monotonic() + timeout_s
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        piece = os.read(reader, 1 << 16)
        if not piece:
            return received
        received += piece


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit status {os.waitstatus_to_exitcode(status)}"


def _one_line(failure: BaseException) -> str:
    lines = str(failure).strip().splitlines()
    return f"{type(failure).__name__}: {lines[0][:160]}" if lines else type(failure).__name__
