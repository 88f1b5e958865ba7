"""Supervisor of `run --live`: run the script in a child, draw its state, exit with its status."""

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

from memagent.diagnostics import notify_user
from memagent.errors import MemagentError
from memagent.live.view import HEIGHT, RunState, render_line, render_lines

FRAME_INTERVAL_S = 0.5
LINE_INTERVAL_S = 10.0
_MAX_DATAGRAM_BYTES = 65_536
_FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_MIN_ROWS = 6
_MIN_COLUMNS = 30
"""Room that the script needs; a smaller terminal has no view."""

# DECSC and DECRC save and restore the cursor. DECSTBM (`r`) sets the lines that scroll, and moves
# the cursor home. https://vt100.net/docs/vt510-rm/DECSTBM.html
_SAVE_CURSOR = "\0337"
_RESTORE_CURSOR = "\0338"


def run_with_view(command: Sequence[str]) -> int:
    """Run `command` with MEMAGENT_LIVE set and draw what it sends.

    Returns its exit status, or 128 + the signal that killed it. Raises MemagentError if stderr is a
    terminal and rich is not installed.
    """
    is_terminal = sys.stderr.isatty()
    if is_terminal and find_spec("rich") is None:
        raise MemagentError(
            "--live needs rich, which is not installed: pip install 'memagent[live]'"
        )
    with (
        tempfile.TemporaryDirectory(prefix="memagent-live-") as directory,
        _open_socket(Path(directory)) as receiver,
        _forward_signals() as receivers,
    ):
        environ = {**os.environ, "MEMAGENT_LIVE": receiver.getsockname()}
        child = subprocess.Popen(command, env=environ)  # noqa: S603
        receivers.append(child.send_signal)
        view = TerminalView() if is_terminal else LineView()
        try:
            _draw_until_exit(child, receiver, view)
        finally:
            view.close()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _draw_until_exit(
    child: subprocess.Popen[bytes], receiver: socket.socket, view: TerminalView | LineView
) -> None:
    state = RunState()
    due_s = 0.0
    while child.poll() is None:
        # A datagram of another version may lack what is read here.
        with contextlib.suppress(TimeoutError, ValueError, KeyError, TypeError):
            state.update(json.loads(receiver.recv(_MAX_DATAGRAM_BYTES)), time.monotonic())
        if time.monotonic() >= due_s:
            due_s = time.monotonic() + FRAME_INTERVAL_S
            view.show(state)


class TerminalView:
    """A view on the last lines of the terminal."""

    def __init__(self) -> None:
        self._area = StatusArea(sys.stderr.fileno(), HEIGHT)
        self._in_color = "NO_COLOR" not in os.environ

    def show(self, state: RunState) -> None:
        rank, columns = state.fullest_rank(), self._area.columns
        if rank is not None and columns is not None:
            self._area.draw(render_lines(rank, columns, in_color=self._in_color))

    def close(self) -> None:
        self._area.close()


class LineView:
    """A line every LINE_INTERVAL_S, as long as there are steps."""

    def __init__(self) -> None:
        self._printed_at_s = float("-inf")
        self._printed_step = -1

    def show(self, state: RunState) -> None:
        rank, now_s = state.fullest_rank(), time.monotonic()
        if rank is None or rank.step == self._printed_step:
            return
        if now_s - self._printed_at_s >= LINE_INTERVAL_S:
            self._printed_at_s = now_s
            self._printed_step = rank.step
            notify_user(render_line(rank))

    def close(self) -> None:
        return None


class StatusArea:
    """The last `height` lines of the terminal behind `fd`, excluded from scrolling.

    From the first `draw` to `close`. Each change is one write, so that it can't interleave with
    output of the script.
    """

    def __init__(self, fd: int, height: int) -> None:
        self._fd = fd
        self._height = height
        self._size: os.terminal_size | None = None

    @property
    def columns(self) -> int | None:
        """The width to draw for, or None if there is no room."""
        try:
            size = os.get_terminal_size(self._fd)
        except OSError:
            return None
        has_room = size.lines >= self._height + _MIN_ROWS and size.columns >= _MIN_COLUMNS
        return size.columns if has_room else None

    def draw(self, lines: Sequence[str]) -> None:
        """Show `lines`, in a terminal that may have changed its size."""
        size = os.get_terminal_size(self._fd)
        if size != self._size:
            self.close()
            self._reserve(size)
        first = size.lines - self._height + 1
        text = "".join(
            f"\033[{first + row};1H\033[2K{line}\033[0m" for row, line in enumerate(lines)
        )
        self._write(f"{_SAVE_CURSOR}{text}{_RESTORE_CURSOR}")

    def close(self) -> None:
        """Clear the lines and let them scroll again."""
        if self._size is None:
            return
        first = self._size.lines - self._height + 1
        self._size = None
        self._write(f"{_SAVE_CURSOR}\033[r\033[{first};1H\033[J{_RESTORE_CURSOR}")

    def _reserve(self, size: os.terminal_size) -> None:
        """Scroll to make room below the cursor, then exclude it from scrolling."""
        self._size = size
        room = "\n" * self._height + f"\033[{self._height}A"
        region = f"\033[1;{size.lines - self._height}r"
        self._write(f"{room}{_SAVE_CURSOR}{region}{_RESTORE_CURSOR}")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed; the run continues
            os.write(self._fd, text.encode())


@contextlib.contextmanager
def _open_socket(directory: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(directory / "socket"))
        receiver.settimeout(FRAME_INTERVAL_S / 2)
        yield receiver


@contextlib.contextmanager
def _forward_signals() -> Iterator[list[Callable[[int], None]]]:
    """Forward signals to the script. Ctrl-C reaches it through the terminal anyway."""
    receivers: list[Callable[[int], None]] = []

    def forward(number: int, _: object) -> None:
        for receive in receivers:
            receive(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED_SIGNALS}
    # A handler that does nothing: SIG_IGN would be inherited by the script.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield receivers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
