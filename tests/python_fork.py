"""Python processes that start with torch imported, forked from a server that imported it once.

Importing torch and creating the first optimizer takes three seconds of processor time; a fork takes
milliseconds. Otherwise a command runs as under `python`, with its own arguments, environment,
folder, streams, limits, exit status and exit handlers. Tests of what happens before torch is
imported, or of what a traceback looks like, start a Python process instead.
"""

from __future__ import annotations

import atexit
import ctypes
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
"""The first optimizer of a process imports the last one."""
TIMEOUT_S = 120.0


class ForkServer:
    """A process to fork from.

    `run` behaves like `subprocess.run([sys.executable, *command], capture_output=True, text=True)`.
    """

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
        timeout: float = TIMEOUT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run `-c CODE`, `-m MODULE` or a script with its arguments, and wait for it."""
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            with open(os.devnull) as nothing:
                process = self._start(command, cwd, env, (nothing, output, errors))
            status = process.wait(timeout)
            texts = [(stream.seek(0), stream.read())[1] for stream in (output, errors)]
        return subprocess.CompletedProcess(list(command), status, *texts)

    def start(
        self, *command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> ForkedProcess:
        """Start a command with pipes to `stdin` and from `stdout`, which also carries stderr."""
        (child_stdin, stdin), (stdout, child_stdout) = os.pipe(), os.pipe()
        with open(child_stdin) as reader, open(child_stdout, "w") as writer:
            process = self._start(command, cwd, env, (reader, writer, writer))
        process.stdin, process.stdout = open(stdin, "w"), open(stdout)  # noqa: SIM115 - `communicate` closes them
        return process

    def start_session(
        self, *command: str, env: Mapping[str, str], stderr: IO[str]
    ) -> ForkedProcess:
        """Start a command as leader of a session of its own, with a pipe from `stdout`."""
        stdout, child_stdout = os.pipe()
        with open(os.devnull) as nothing, open(child_stdout, "w") as writer:
            process = self._start(command, None, env, (nothing, writer, stderr), is_leader=True)
        process.stdout = open(stdout)  # noqa: SIM115 - its user closes it
        return process

    def _start(
        self,
        command: Sequence[str],
        cwd: Path | None,
        env: Mapping[str, str] | None,
        streams: Sequence[IO[str]],
        *,
        is_leader: bool = False,
    ) -> ForkedProcess:
        status_reader, status_writer = os.pipe()
        with tempfile.TemporaryFile("w+") as request, open(status_writer, "w"):
            json.dump(
                {
                    "command": command,
                    "cwd": str(cwd or Path.cwd()),
                    "environ": dict(env or os.environ),
                    "is_leader": is_leader,
                },
                request,
            )
            request.flush()
            files = [request.fileno(), *(stream.fileno() for stream in streams), status_writer]
            socket.send_fds(self._control, [b"."], files)
        statuses = os.fdopen(status_reader)
        return ForkedProcess(int(statuses.readline()), statuses)

    def close(self) -> None:
        self._control.close()


@dataclass
class ForkedProcess:
    """A running command, with the part of subprocess.Popen's interface that tests need."""

    pid: int
    statuses: IO[str]
    """Pipe that delivers the exit status."""
    stdin: IO[str] | None = None
    stdout: IO[str] | None = None
    returncode: int | None = None

    def wait(self, timeout: float = TIMEOUT_S) -> int:
        """Return the exit status, negative for a signal.

        Kills the process and raises TimeoutError if it runs longer than `timeout` seconds.
        """
        if self.returncode is None:
            is_timed_out = not select.select([self.statuses], [], [], timeout)[0]
            if is_timed_out:
                os.kill(self.pid, signal.SIGKILL)
            self.returncode = int(self.statuses.readline())
            self.statuses.close()
            if is_timed_out:
                raise TimeoutError(f"{self.pid} took more than {timeout} s")
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit status, None while the process runs."""
        has_status = self.returncode is None and select.select([self.statuses], [], [], 0)[0]
        return self.wait() if has_status else self.returncode

    def communicate(self) -> tuple[str, None]:
        """Return the rest of the output, and wait for the process."""
        assert self.stdin is not None and self.stdout is not None
        output = "" if self.stdout.closed else self.stdout.read()
        self.stdin.close()
        self.stdout.close()
        self.wait()
        return output, None

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Accept commands until the peer closes. Return the command and its streams in a forked child."""
    waiting = set()
    while True:
        message, streams, _, _ = socket.recv_fds(control, 1, 5)
        if not message:
            sys.exit()
        waiting = {pid for pid in waiting if os.waitpid(pid, os.WNOHANG)[0] == 0}
        waiting.add(os.fork())
        if 0 in waiting:
            control.close()
            request_file, *standard_streams, status_writer = streams
            child = os.fork()
            if child == 0:
                os.close(status_writer)
                os.lseek(request_file, 0, os.SEEK_SET)
                with open(request_file) as request:
                    return json.load(request), standard_streams
            for stream in (request_file, *standard_streams):
                os.close(stream)
            report_status(child, status_writer)
        for stream in streams:
            os.close(stream)


def report_status(child: int, status_writer: int) -> NoReturn:
    """Write the process id and, after its end, the exit status; negative means a signal."""
    os.write(status_writer, f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    os.write(status_writer, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def keep_libraries() -> None:
    """Keep torch and what it imports when the interpreter ends."""
    names = [name for name in sys.modules if name.partition(".")[0] in ("torch", "numpy", "sympy")]
    libraries = [sys.modules.pop(name) for name in names]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(libraries))


def keep_dispatcher() -> None:
    """End the process as soon as the interpreter has ended, without torch's C++ destructors."""
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)  # before it: the last that is registered runs first


def run_request(request: dict[str, Any], streams: list[int]) -> None:
    """Run the command in this process, as Python would."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if request["is_leader"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    first, *rest = request["command"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-m":
        sys.argv, sys.path[0] = rest, request["cwd"]
        runpy._run_module_as_main(rest[0], alter_argv=True)  # what `python -m` calls
        return
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
    if os.fork():  # detach: some tests count their child processes
        os._exit(0)
    atexit.register(keep_libraries)  # the first, so that it runs last
    for module in sys.argv[2:]:
        importlib.import_module(module)
    # To free torch's modules and operators is to copy their pages: 0.2 s of processor time a command.
    keep_dispatcher()
    gc.freeze()  # a collection in a child would copy every page it visits
    run_request(*serve(socket.socket(fileno=int(sys.argv[1]))))
