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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

TORCH = ("torch", "torch.utils.data", "torch._dynamo")
"""The last one is what the first optimizer of a process imports."""
PATIENCE_S = 120.0


class WarmPython:
    """The process to fork from. `run` is like `subprocess.run([sys.executable, *command], capture_output=True, text=True)`."""

    def __init__(self, *modules: str) -> None:
        self._control, theirs = socket.socketpair()
        command = [sys.executable, __file__, str(theirs.fileno()), *(modules or TORCH)]
        subprocess.run(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, check=True)
        theirs.close()

    def run(
        self,
        *command: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = PATIENCE_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run `-c CODE`, `-m MODULE` or a script, with its arguments, to its end."""
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            with open(os.devnull) as nothing:
                process = self._start(command, cwd, env, (nothing, output, errors))
            status = process.wait(timeout)
            said = [(stream.seek(0), stream.read())[1] for stream in (output, errors)]
        return subprocess.CompletedProcess(list(command), status, *said)

    def start(
        self, *command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> WarmProcess:
        """Begin it, with pipes to `stdin` and from `stdout`, which has its stderr too."""
        (asks, stdin), (stdout, says) = os.pipe(), os.pipe()
        with open(asks) as taken, open(says, "w") as given:
            process = self._start(command, cwd, env, (taken, given, given))
        process.stdin, process.stdout = open(stdin, "w"), open(stdout)  # noqa: SIM115 - `communicate` closes them
        return process

    def _start(
        self,
        command: Sequence[str],
        cwd: Path | None,
        env: Mapping[str, str] | None,
        streams: Sequence[IO[str]],
    ) -> WarmProcess:
        news, tell = os.pipe()
        with tempfile.TemporaryFile("w+") as asked, open(tell, "w"):
            json.dump(
                {
                    "command": command,
                    "cwd": str(cwd or Path.cwd()),
                    "environ": dict(env or os.environ),
                },
                asked,
            )
            asked.flush()
            files = [asked.fileno(), *(stream.fileno() for stream in streams), tell]
            socket.send_fds(self._control, [b"."], files)
        told = os.fdopen(news)
        return WarmProcess(int(told.readline()), told)

    def close(self) -> None:
        self._control.close()


@dataclass
class WarmProcess:
    """A command that runs, as much of subprocess.Popen as the tests need."""

    pid: int
    told: IO[str]
    """Where its exit status comes."""
    stdin: IO[str] | None = None
    stdout: IO[str] | None = None
    returncode: int | None = None

    def wait(self, timeout: float = PATIENCE_S) -> int:
        """The exit status, negative for a signal. Raises TimeoutError, and kills it, where it takes longer."""
        if self.returncode is None:
            is_late = not select.select([self.told], [], [], timeout)[0]
            if is_late:
                os.kill(self.pid, signal.SIGKILL)
            self.returncode = int(self.told.readline())
            self.told.close()
            if is_late:
                raise TimeoutError(f"{self.pid} took more than {timeout} s")
        return self.returncode

    def communicate(self) -> tuple[str, None]:
        """What it has yet to say, to its end."""
        assert self.stdin is not None and self.stdout is not None
        said = "" if self.stdout.closed else self.stdout.read()
        self.stdin.close()
        self.stdout.close()
        self.wait()
        return said, None

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Take commands until the other end is closed. Returns, in a process of its own each time, the command and its streams."""
    waiting = set()
    while True:
        came, streams, _, _ = socket.recv_fds(control, 1, 5)
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
            for stream in (asked, *own):
                os.close(stream)
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
    for number, stream in enumerate(streams):
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
    if os.fork():  # no child of the tests, some of which count those
        os._exit(0)
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()  # a collection in a child would copy every page that it looks at
    become(*serve(socket.socket(fileno=int(sys.argv[1]))))
