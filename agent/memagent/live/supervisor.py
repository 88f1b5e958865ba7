"""The process that looks: starts the script in one of its own, hears from it and draws, and ends as it does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from memagent.diagnostics.console import notify_user
from memagent.errors import MemagentError
from memagent.live.render import HEIGHT, lines, plain
from memagent.live.state import RunState
from memagent.live.status_area import StatusArea

FRAME_S = 0.5
PLAIN_EVERY_S = 10.0
_LARGEST = 65_536
_FORWARDED = (signal.SIGTERM, signal.SIGHUP)


def run_beside(command: Sequence[str]) -> int:
    """Run `command` with MEMAGENT_LIVE set, draw what it sends, and return its exit status (128 + the signal that killed it).

    Raises MemagentError where stderr is a terminal and rich is not installed."""
    is_terminal = sys.stderr.isatty()
    if is_terminal and find_spec("rich") is None:
        raise MemagentError(
            "--live draws with rich, which is not installed: pip install 'memagent[live]'"
        )
    with (
        tempfile.TemporaryDirectory(prefix="memagent-live-") as folder,
        _listen(Path(folder)) as ear,
        _signals() as send,
    ):
        child = subprocess.Popen(command, env={**os.environ, "MEMAGENT_LIVE": ear.getsockname()})  # noqa: S603
        send.append(child.send_signal)
        view = TerminalView() if is_terminal else PlainView()
        try:
            _watch(child, ear, view)
        finally:
            view.close()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _watch(child: subprocess.Popen[bytes], ear: socket.socket, view: View) -> None:
    seen = RunState()
    due_s = 0.0
    while child.poll() is None:
        with contextlib.suppress(
            TimeoutError, ValueError, KeyError, TypeError
        ):  # of another version, say
            seen.take(json.loads(ear.recv(_LARGEST)), time.monotonic())
        if time.monotonic() >= due_s:
            due_s = time.monotonic() + FRAME_S
            view.show(seen)


class TerminalView:
    """Drawn on the last lines."""

    def __init__(self) -> None:
        self._bottom = StatusArea(sys.stderr.fileno(), HEIGHT)
        self._in_colour = "NO_COLOR" not in os.environ

    def show(self, seen: RunState) -> None:
        shown, columns = seen.shown(), self._bottom.columns
        if shown is not None and columns is not None:
            self._bottom.draw(lines(shown, columns, in_colour=self._in_colour))

    def close(self) -> None:
        self._bottom.close()


class PlainView:
    """A line now and then, while there are steps."""

    def __init__(self) -> None:
        self._told_at_s, self._told_step = float("-inf"), -1

    def show(self, seen: RunState) -> None:
        shown, now_s = seen.shown(), time.monotonic()
        if (
            shown is not None
            and shown.step != self._told_step
            and now_s - self._told_at_s >= PLAIN_EVERY_S
        ):
            self._told_at_s, self._told_step = now_s, shown.step
            notify_user(plain(shown))

    def close(self) -> None:
        return None


View = TerminalView | PlainView


@contextlib.contextmanager
def _listen(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(folder / "socket"))
        ear.settimeout(FRAME_S / 2)
        yield ear


@contextlib.contextmanager
def _signals() -> Iterator[list[Callable[[int], None]]]:
    """Ctrl-C reaches the script by the terminal, and what it does then is its own business; other signals are handed on to it."""
    receivers: list[Callable[[int], None]] = []

    def forward(number: int, _: object) -> None:
        for receive in receivers:
            receive(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    before[signal.SIGINT] = signal.signal(
        signal.SIGINT, lambda *_: None
    )  # a handler, as SIG_IGN would be inherited
    try:
        yield receivers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
