"""Processes of the demo: the server, the trainings under a real memory limit, a rehearsal."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from memagent.delivery.api_client import ApiClient
from memagent.errors import MemagentError
from memagent.wire.local_tokens import find_token

TRAIN = Path(__file__).with_name("train.py")
START_TIMEOUT_S = 60.0
REHEARSED_STEPS = 3
VERDICT_LINES = 5
"""Of the rehearsal's output: the card, the verdict, and three levels of memory."""


@dataclass
class Server:
    """A `memagent serve` on SQLite in `folder`, which sends Slack messages to `slack_url`."""

    folder: Path
    slack_url: str
    process: subprocess.Popen[str] = field(init=False)
    url: str = field(init=False, default="")
    database: str = field(init=False)
    token_file: Path = field(init=False)
    """Has the token for agents that don't have the demo's data folder."""
    _environment: dict[str, str] = field(init=False, repr=False)

    def start(self) -> None:
        """Start the server, and return before it answers."""
        self.database = f"sqlite:///{self.folder / 'demo.db'}"
        self.token_file = self.folder / "token"
        self._environment = _environment() | {
            "MEMAGENT_DATABASE_URL": self.database,
            "MEMAGENT_SECRET_KEY": os.urandom(24).hex(),
            "MEMAGENT_SLACK_WEBHOOK_URL": self.slack_url,
            "MEMAGENT_ALLOW_LOCAL_WEBHOOKS": "1",
            "XDG_DATA_HOME": str(self.folder),
        }
        serve = ["serve", "--listen", "127.0.0.1:0", "--parent", str(os.getpid())]
        with (self.folder / "server.log").open("w") as log:
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "memagent", *serve],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Wait until the server prints its address. Raises MemagentError if it doesn't."""
        output = self.process.stdout
        is_readable = output is not None and select.select([output], [], [], START_TIMEOUT_S)[0]
        line = output.readline() if output is not None and is_readable else ""
        self.url = line.strip().rpartition(" ")[2]
        if not self.url:
            log = (self.folder / "server.log").read_text()[-2000:]
            raise MemagentError(f"the demo's server did not start:\n{log}")
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(find_token(self.url, "ingest", self._environment) or "")

    def links(self, *pages: str) -> dict[str, str]:
        """Return a link for each page, which logs a browser in once. Raises MemagentError."""
        address = self.url.removeprefix("http://")
        link = ["token", "link", "--listen", address, "--expires", "24h", *pages]
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "memagent", *link],
            env=self._environment,
            capture_output=True,
            check=False,
            text=True,
        )
        if done.returncode:
            raise MemagentError(f"the demo's server has no links: {done.stderr.strip()}")
        return dict(zip(pages, done.stdout.split(), strict=True))

    def get(self, path: str) -> Any:
        """Return the JSON of a GET request."""
        token = find_token(self.url, "read", self._environment)
        with closing(ApiClient(self.url, token)) as client:
            response = client.request(path, timeout_s=10)
        if response.status != 200:
            raise MemagentError(f"{path} answered {response.status}: {response.body[:200]!r}")
        return msgspec.json.decode(response.body)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@dataclass(frozen=True)
class TrainingResult:
    """Exit of a training process; `ended_at` is Unix time."""

    returncode: int
    ended_at: float
    output: str

    def check(self) -> None:
        """Raise MemagentError with the script's last line if the training failed."""
        if self.returncode:
            reason = self.output.rpartition("\n")[2] or f"exit status {self.returncode}"
            raise MemagentError(
                f"the healthy training failed: {reason}. Is --limit large enough for this torch?"
            )

    @property
    def checkpoint_step(self) -> int | None:
        """Return the step of the last checkpoint that the script saved in `on_risk`."""
        steps = re.findall(r"^checkpoint saved at step (\d+)$", self.output, re.MULTILINE)
        return int(steps[-1]) if steps else None


def train(
    server: Server,
    name: str,
    *,
    run_id: str,
    leak: str,
    steps: int,
    limit_bytes: int,
    on_gpu: bool,
    on_line: Callable[[str], None],
) -> TrainingResult:
    """Run the training script under a memory limit of the operating system or the GPU's driver."""
    environment = _environment() | {
        "MEMAGENT_SERVER": server.url,
        "MEMAGENT_PROJECT": "demo",
        "MEMAGENT_NAME": name,
        "MEMAGENT_RUN_ID": run_id,
        "MEMAGENT_DIR": str(server.folder / "runs"),
        "XDG_DATA_HOME": str(server.folder),  # has the token
        "TMPDIR": str(server.folder),  # for torch's own folders, which it leaves
        "PYTHONUNBUFFERED": "1",
    }
    command = [
        sys.executable,
        str(TRAIN),
        "--steps",
        str(steps),
        "--leak",
        leak,
        "--gpu-limit-bytes",
        str(limit_bytes),
    ]
    command += ["--checkpoint", str(server.folder / f"{name}.pt")]
    process = subprocess.Popen(  # noqa: S603
        command if on_gpu else limited(command, limit_bytes),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C is for the demo, which ends the training
    )
    lines: list[str] = []

    def pump() -> None:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            on_line(lines[-1])

    reader = threading.Thread(target=pump, daemon=True)
    reader.start()
    try:
        returncode = process.wait()
    finally:
        with suppress(ProcessLookupError):  # the group is gone once all its processes have ended
            os.killpg(process.pid, signal.SIGKILL)
    ended_at = time.time()
    reader.join(5)
    return TrainingResult(returncode, ended_at, "\n".join(lines))


@dataclass(frozen=True)
class GpuRehearsal:
    """Answer of `memagent rehearse` about the training script; `report` is its JSON."""

    gpu: str
    lines: list[str]
    """The verdict, or why there is none."""
    report: dict[str, Any]


def rehearse(gpu: str, folder: Path) -> GpuRehearsal:
    """Rehearse some steps of the training script on a card, in an empty folder below `folder`."""
    work, report = folder / "rehearsal", folder / "rehearsal.json"
    work.mkdir()
    script = Path(shutil.copy(TRAIN, work)).name
    options = ["--gpu", gpu, "--steps", str(REHEARSED_STEPS), "--report", str(report)]
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "memagent", "rehearse", *options, script],
        cwd=work,
        env=_environment(),
        capture_output=True,
        check=False,
        text=True,
    )
    if not report.exists():
        last_line = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        reason = last_line.removeprefix("memagent: ")
        return GpuRehearsal(gpu, [f"no verdict: {reason}"], {"error": reason})
    verdict = "".join(done.stdout.rpartition(f"{script} on ")[1:]).splitlines()
    return GpuRehearsal(gpu, verdict[:VERDICT_LINES], json.loads(report.read_text()))


def has_gpu() -> bool:
    """Return True if the trainings run on a GPU. Raises MemagentError without torch."""
    try:
        import torch
    except ImportError as error:
        raise MemagentError(
            "The demo trains a real model and needs PyTorch: pip install torch"
        ) from error
    return bool(torch.cuda.is_available())


def limited(command: list[str], limit_bytes: int) -> list[str]:
    """Return `command` under RLIMIT_DATA, set by a Python process that becomes the command.

    Linux counts all private writable memory: an allocation fails as on a full machine.
    """
    if not sys.platform.startswith("linux"):
        return command
    code = (
        "import os, resource, sys; limit = int(sys.argv[1]); "
        "resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)); "
        "os.execv(sys.argv[2], sys.argv[2:])"
    )
    return [sys.executable, "-c", code, str(limit_bytes), *command]


def _environment() -> dict[str, str]:
    """Return the environment without the user's settings of memagent."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MEMAGENT_")}
