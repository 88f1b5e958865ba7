"""A real server process, for tests and for the programs under `benchmarks/`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import urllib3

from tests.python_fork import ForkedProcess, ForkServer

SECRET_KEY = "a secret key for tests only"
START_TIMEOUT_S = 240.0

Process = subprocess.Popen[str] | ForkedProcess


@dataclass(frozen=True)
class Answer:
    """A response of a live server."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class LiveServer:
    """A `memagent serve` process, leader of its own process group."""

    def __init__(self, process: Process, url: str, data: Path) -> None:
        self.process = process
        self.url = url
        self.data = data
        self._pool = urllib3.PoolManager(retries=False)

    @classmethod
    def start(
        cls,
        data: Path,
        listen: str,
        arguments: tuple[str, ...],
        environ: Mapping[str, str],
        program: tuple[str, ...] = ("-m", "memagent"),
        fork_server: ForkServer | None = None,
    ) -> LiveServer:
        """Start the program, and return when it answers.

        A fork of `fork_server`, if given, costs less than half of a new Python process.
        """
        data.mkdir(parents=True, exist_ok=True)
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("MEMAGENT_")
        }
        own = {
            "XDG_DATA_HOME": str(data),
            "TMPDIR": str(data),  # removed with the test's folder, also after a kill
            "MEMAGENT_SECRET_KEY": SECRET_KEY,
            "MEMAGENT_DATABASE_URL": f"sqlite:///{data}/memagent.db",
            "MEMAGENT_OPEN": "1",  # until a test creates tokens
        }
        start = fork_server.start_session if fork_server else _start_python
        command = (*program, "serve", "--listen", listen, *arguments)
        with (data / "stderr.log").open("a") as errors:
            process = start(*command, env={**inherited, **own, **environ}, stderr=errors)
        return cls(process, _address(process, data), data)

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.data}/memagent.db"

    @property
    def errors(self) -> str:
        """Return what the server wrote to stderr."""
        return (self.data / "stderr.log").read_text()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, None, headers)

    def post(self, path: str, body: bytes | dict[str, Any] | list[Any], **headers: str) -> Answer:
        """Post bytes unchanged, or anything else as JSON. Headers: `content_type="..."`."""
        if isinstance(body, bytes):
            return self.request(
                "POST", path, body, {"content_type": "application/msgpack", **headers}
            )
        return self.request(
            "POST", path, json.dumps(body).encode(), {"content_type": "application/json", **headers}
        )

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        named = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        response = self._pool.request(
            method, self.url + path, body=body, headers=named, timeout=30.0, redirect=False
        )
        return Answer(response.status, response.headers, response.data)

    def stop(self, timeout_s: float = 30.0) -> int:
        """SIGTERM, and the exit status."""
        self.process.terminate()
        return self._wait(timeout_s)

    def kill(self) -> None:
        """Send SIGKILL to the whole process group."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self._wait(30.0)

    def _wait(self, timeout_s: float) -> int:
        self._pool.clear()
        status = self.process.wait(timeout_s)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status


def _start_python(*command: str, env: Mapping[str, str], stderr: IO[str]) -> Process:
    return subprocess.Popen(
        [sys.executable, *command],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )


def _address(process: Process, data: Path) -> str:
    """Return the address from the line that the server prints when it is ready."""
    assert process.stdout is not None
    timer = threading.Timer(START_TIMEOUT_S, process.kill)
    timer.start()
    try:
        for line in process.stdout:
            if "http://" in line:
                return line[line.index("http://") :].strip()
    finally:
        timer.cancel()
    process.stdout.close()
    raise AssertionError(
        f"memagent serve ended with {process.wait()} before it was ready:\n{(data / 'stderr.log').read_text()}"
    )
