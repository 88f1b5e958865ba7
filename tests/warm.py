"""Python processes that begin with torch imported: forked from one that has done so and waits for commands.

Importing torch and making the first optimizer takes three seconds of a processor; a fork takes milliseconds. In all else a command is
what it is under `python`: arguments, environment, folder, streams, limits, exit status and whatever runs at exit are its own. Tests of
what happens before torch is imported, and of what a traceback looks like, start a Python themselves.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

TORCH = ("torch", "torch.utils.data", "torch._dynamo")
"""The last one is what the first optimizer of a process imports."""


class WarmPython:
    """The process to fork from. `run` is like `subprocess.run([sys.executable, *command], capture_output=True, text=True)`."""

    def __init__(self, *modules: str) -> None:
        self._control, theirs = socket.socketpair()
        command = [sys.executable, __file__, str(theirs.fileno()), *(modules or TORCH)]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def run(
        self, *command: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return self.start(*command, cwd=cwd, environ=environ).ended()

    def start(self, *command: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> WarmProcess:
        """Begin `-c CODE`, `-m MODULE` or a script, with its arguments; `environ` is beside this process's own."""
        output, errors = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115 - `ended` closes them
        news, tell = os.pipe()
        with tempfile.TemporaryFile("w+") as asked, open(tell, "w"):
            json.dump(
                {"command": command, "cwd": str(cwd or Path.cwd()), "environ": {**os.environ, **(environ or {})}}, asked
            )
            asked.flush()
            socket.send_fds(self._control, [b"."], [asked.fileno(), output.fileno(), errors.fileno(), tell])
        return WarmProcess(command, output, errors, os.fdopen(news))

    def close(self) -> None:
        self._control.close()
        self._process.wait()


@dataclass
class WarmProcess:
    """A command that runs."""

    command: tuple[str, ...]
    output: IO[str]
    errors: IO[str]
    news: IO[str]
    """Its number, and when it has ended its exit status."""

    def ended(self, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Wait for its end. Raises subprocess.TimeoutExpired, after its end by a SIGKILL."""
        with self.output, self.errors, self.news:
            pid = int(self.news.readline())
            if is_late := not select.select([self.news], [], [], timeout)[0]:
                os.kill(pid, signal.SIGKILL)
            status = int(self.news.readline())
            said = [(stream.seek(0), stream.read())[1] for stream in (self.output, self.errors)]
        if is_late:
            raise subprocess.TimeoutExpired(list(self.command), timeout, *said)
        return subprocess.CompletedProcess(list(self.command), status, *said)


def serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Take commands until the other end is closed. Returns, in a process of its own each time, the command and its streams."""
    waiting = set()
    while True:
        came, streams, _, _ = socket.recv_fds(control, 1, 4)
        if not came:
            sys.exit()
        waiting = {pid for pid in waiting if os.waitpid(pid, os.WNOHANG)[0] == 0}
        waiting.add(os.fork())
        if 0 in waiting:
            control.close()
            asked, *own, tell = streams
            child = os.fork()
            if child == 0:
                os.close(tell)
                os.lseek(asked, 0, os.SEEK_SET)
                with open(asked) as request:
                    return json.load(request), own
            tell_of(child, tell)
        for stream in streams:
            os.close(stream)


def tell_of(child: int, tell: int) -> NoReturn:
    """Write the number of the process and, when it has ended, its exit status; negative is a signal."""
    os.write(tell, f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    os.write(tell, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Run the command in this process, as Python would."""
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    first, *rest = request["command"]
    if first == "-m":
        sys.argv, sys.path[0] = rest, request["cwd"]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if first == "-c":
        code, name = rest[0], "<string>"
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
    else:
        code, name = Path(first).read_text(), first
        main.__file__ = first
        sys.argv, sys.path[0] = [first, *rest], str(Path(first).resolve().parent)
    exec(compile(code, name, "exec"), main.__dict__)


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()  # a collection in a child would copy every page that it looks at
    become(*serve(socket.socket(fileno=int(sys.argv[1]))))
