"""Train for real, leak for real, and be warned before it dies: a server on SQLite, a local receiver that speaks Slack's webhook
protocol, a healthy run that must raise no alert, and the same script with a leak under a real memory limit."""

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

SETTLE_S = 20.0
"""How long the server may take to see the end of a run and send its last message."""


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
        raise SettingError(f"--steps is {arguments.steps}: give 1 or more")
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that server and trainings end with the demo
    on_gpu = processes.has_gpu()
    if not on_gpu and not sys.platform.startswith("linux"):
        raise MemagentError(
            "without a GPU the demo needs Linux: this system enforces no memory limit on a process"
        )
    with SlackReceiver() as slack, _folder(is_kept=arguments.keep or arguments.json) as folder:
        server = processes.Server(folder, slack.url)
        server.start()
        try:
            return _play(arguments, server, slack, limit_bytes, on_gpu)
        finally:
            server.stop()


@contextlib.contextmanager
def _folder(*, is_kept: bool) -> Iterator[Path]:
    """For database, log and checkpoints. Gone afterwards, unless its name was told to somebody who may look into it."""
    folder = Path(tempfile.mkdtemp(prefix="memagent-demo-"))
    is_told = False
    try:
        yield folder
        is_told = is_kept
    finally:
        if not is_told:
            shutil.rmtree(folder, ignore_errors=True)


def _play(
    arguments: argparse.Namespace,
    server: processes.Server,
    slack: SlackReceiver,
    limit_bytes: int,
    on_gpu: bool,
) -> int:
    suffix = secrets.token_hex(2)
    healthy_id, leaking_id = f"healthy-{suffix}", f"leaking-{suffix}"
    where = "the GPU" if on_gpu else "the CPU"
    _say(
        f"server on {server.url}; training on {where} under a limit of {format_bytes(limit_bytes)}"
    )
    _say(f"healthy: {arguments.steps} steps")
    train = functools.partial(
        processes.train, server, limit_bytes=limit_bytes, on_gpu=on_gpu, on_line=_quote
    )
    train("healthy", run_id=healthy_id, leak="none", steps=arguments.steps)
    _say(f"leaking ({arguments.leak}): until it dies")
    ended = train("leaking", run_id=leaking_id, leak=arguments.leak, steps=3 * arguments.steps)
    _settle(server, leaking_id)
    healthy = summary.read_healthy(server, healthy_id)
    leaking = summary.read_leaking(server, leaking_id, ended, slack.messages)
    if arguments.json:
        print(json.dumps(summary.to_json(healthy, leaking, server)), flush=True)
    else:
        print(summary.tell_story(healthy, leaking, server), flush=True)
    if arguments.keep:
        _keep(server)
    return 0 if summary.holds(healthy, leaking) else 1


def _settle(server: processes.Server, run_id: str) -> None:
    """Wait until the run has ended for the server too, and no alert of it is open."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        run = server.get(f"/api/v1/runs/{run_id}")
        alerts = server.get(f"/api/v1/alerts?run={run_id}")["alerts"]
        if run["status"] != "running" and alerts and all(alert["closed_at"] for alert in alerts):
            return
        time.sleep(0.25)


def _keep(server: processes.Server) -> None:
    _say(f"the server stays up on {server.url} until Ctrl-C; its database is {server.database}")
    try:
        while server.process.poll() is None:
            time.sleep(0.5)
    except (
        KeyboardInterrupt,
        SystemExit,
    ):  # both end it as meant: the database that was named stays
        pass


def _say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


def _quote(line: str) -> None:
    print(f"    {line}", file=sys.stderr, flush=True)
