"""Run a demo: a real training with a real leak, and the warning before it crashes.

It starts a server on SQLite and a local receiver of Slack messages. A healthy run must raise no
alert. Then the same script leaks under a real memory limit."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from memagent.errors import MemagentError, SettingError
from memagent.units import format_bytes, parse_bytes
from memagent_demo import processes, summary
from memagent_demo.fake_slack import SlackReceiver

MAX_WAIT_S = 20.0
"""Time for the server to notice the end of a run and send its last message."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--limit",
        default="2GiB",
        metavar="SIZE",
        help="memory that each training may use (default %(default)s)",
    )
    parser.add_argument(
        "--leak",
        choices=("outputs", "loss"),
        default="outputs",
        help="which classic leak (default %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=400,
        help="steps of the healthy run; the leaking one plans three times as many",
    )
    parser.add_argument("--keep", action="store_true", help="leave the server up until Ctrl-C")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else on stdout"
    )


def run(arguments: argparse.Namespace) -> int:
    limit_bytes = parse_bytes(arguments.limit)
    if arguments.steps < 1:
        raise SettingError(f"--steps must be 1 or more, got {arguments.steps}")
    # The server and the trainings must end with the demo.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    on_gpu = processes.has_gpu()
    if not on_gpu and not sys.platform.startswith("linux"):
        raise MemagentError(
            "Without a GPU the demo needs Linux: this system can't limit a process's memory."
        )
    with (
        SlackReceiver() as slack,
        _temporary_folder(is_kept=arguments.keep or arguments.json) as folder,
    ):
        server = processes.Server(folder, slack.url)
        server.start()
        try:
            return _run_trainings(arguments, server, slack, limit_bytes, on_gpu)
        finally:
            server.stop()


@contextlib.contextmanager
def _temporary_folder(*, is_kept: bool) -> Iterator[Path]:
    """Create a folder for database, log and checkpoints; remove it unless its name was printed."""
    folder = Path(tempfile.mkdtemp(prefix="memagent-demo-"))
    is_printed = False
    try:
        yield folder
        is_printed = is_kept
    finally:
        if not is_printed:
            shutil.rmtree(folder, ignore_errors=True)


def _run_trainings(
    arguments: argparse.Namespace,
    server: processes.Server,
    slack: SlackReceiver,
    limit_bytes: int,
    on_gpu: bool,
) -> int:
    suffix = secrets.token_hex(2)
    healthy_id, leaking_id = f"healthy-{suffix}", f"leaking-{suffix}"
    device = "the GPU" if on_gpu else "the CPU"
    _say(f"server on {server.url}; training on {device}, limit {format_bytes(limit_bytes)}")
    _say(f"healthy: {arguments.steps} steps")
    train = functools.partial(
        processes.train, server, limit_bytes=limit_bytes, on_gpu=on_gpu, on_line=_print_output
    )
    train("healthy", run_id=healthy_id, leak="none", steps=arguments.steps)
    _say(f"leaking ({arguments.leak}): until it runs out of memory")
    leaking_process = train(
        "leaking", run_id=leaking_id, leak=arguments.leak, steps=3 * arguments.steps
    )
    _wait_for_end(server, leaking_id)
    healthy = summary.read_healthy(server, healthy_id)
    leaking = summary.read_leaking(server, leaking_id, leaking_process, slack.messages)
    if arguments.json:
        print(json.dumps(summary.to_json(healthy, leaking, server)), flush=True)
    else:
        print(summary.to_text(healthy, leaking, server), flush=True)
    if arguments.keep:
        _serve_until_interrupted(server)
    return 0 if summary.is_success(healthy, leaking) else 1


def _wait_for_end(server: processes.Server, run_id: str) -> None:
    """Wait until the server has noticed the end of the run and closed its alerts."""
    deadline = time.monotonic() + MAX_WAIT_S
    while time.monotonic() < deadline:
        run = server.get(f"/api/v1/runs/{run_id}")
        alerts = server.get(f"/api/v1/alerts?run={run_id}")["alerts"]
        if run["status"] != "running" and alerts and all(alert["closed_at"] for alert in alerts):
            return
        time.sleep(0.25)


def _serve_until_interrupted(server: processes.Server) -> None:
    _say(f"the server runs on {server.url} until Ctrl-C; its database is {server.database}")
    try:
        while server.process.poll() is None:
            time.sleep(0.5)
    except (KeyboardInterrupt, SystemExit):
        pass  # The expected end; the database stays, since its name was printed.


def _say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


def _print_output(line: str) -> None:
    print(f"    {line}", file=sys.stderr, flush=True)
