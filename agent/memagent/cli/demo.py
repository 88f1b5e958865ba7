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
from collections.abc import Iterator
from pathlib import Path

from memagent.errors import MemagentError, SettingError
from memagent.rehearsal.launch import cuda_card
from memagent.units import format_bytes, format_duration, parse_bytes
from memagent_demo import processes, summary
from memagent_demo.fake_slack import SlackReceiver

MAX_WAIT_S = 20.0
"""Time for the server to notice the end of a run and send its last message."""
STEP_S = 0.1
"""A step on one core, for the duration that is announced."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--limit",
        default="1.5GiB",
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
        default=200,
        help="steps of the healthy run; the leaking one plans three times as many",
    )
    parser.add_argument(
        "--gpu",
        metavar="CARD",
        help="card for a rehearsal at the end (default: "
        f"{summary.DEFAULT_GPU} where there is no GPU)",
    )
    parser.add_argument(
        "--keep",
        action=argparse.BooleanOptionalAction,
        help="leave the server up until Ctrl-C (default: in a terminal)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else on stdout"
    )


def run(arguments: argparse.Namespace) -> int:
    limit_bytes = parse_bytes(arguments.limit)
    cuda_card(arguments.gpu or summary.DEFAULT_GPU)
    if arguments.steps < 1:
        raise SettingError(f"--steps must be 1 or more, got {arguments.steps}")
    is_kept = (
        sys.stdout.isatty() and not arguments.json if arguments.keep is None else arguments.keep
    )
    # The server and the trainings must end with the demo, and with its terminal.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    with (
        SlackReceiver() as slack,
        _temporary_folder(is_kept=arguments.json) as folder,
        _running_server(folder, slack) as (server, on_gpu),
    ):
        healthy, leaking = _run_trainings(arguments, server, slack, limit_bytes, on_gpu)
        rehearsal = None
        if gpu := arguments.gpu or (None if on_gpu else summary.DEFAULT_GPU):
            _say(f"rehearse the healthy training on {gpu}, which needn't be there (about 15 s)")
            rehearsal = processes.rehearse(gpu, folder)
        if arguments.json:
            print(json.dumps(summary.to_json(healthy, leaking, server, rehearsal)), flush=True)
        else:
            links = server.links(*summary.pages(healthy, leaking)) if is_kept else None
            settings = f"MEMAGENT_SERVER={server.url} MEMAGENT_TOKEN_FILE={server.token_file}"
            attach = settings if is_kept else None
            print(summary.to_text(healthy, leaking, links, attach, rehearsal), flush=True)
        if is_kept:
            _serve_until_interrupted(server)
    return 0 if summary.is_success(healthy, leaking) else 1


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


@contextlib.contextmanager
def _running_server(folder: Path, slack: SlackReceiver) -> Iterator[tuple[processes.Server, bool]]:
    """Start the server, and import torch meanwhile; yield the server and whether there is a GPU."""
    _say("1/4 start the server and import torch (5 to 20 s)")
    server = processes.Server(folder, slack.url)
    server.start()
    try:
        on_gpu = processes.has_gpu()
        if not on_gpu and not sys.platform.startswith("linux"):
            raise MemagentError(
                "Without a GPU the demo needs Linux: this system can't limit a process's memory."
            )
        server.wait_until_ready()
        link = server.links("/")["/"]
        _say(f"1/4 open {link}: it shows the runs while they train")
        yield server, on_gpu
    finally:
        server.stop()


def _run_trainings(
    arguments: argparse.Namespace,
    server: processes.Server,
    slack: SlackReceiver,
    limit_bytes: int,
    on_gpu: bool,
) -> tuple[summary.HealthyRun, summary.LeakingRun]:
    suffix = secrets.token_hex(2)
    healthy_id, leaking_id = f"healthy-{suffix}", f"leaking-{suffix}"
    train = functools.partial(
        processes.train, server, limit_bytes=limit_bytes, on_gpu=on_gpu, on_line=_print_output
    )
    limit = f"limit {format_bytes(limit_bytes)}"
    duration = "seconds" if on_gpu else f"about {format_duration(STEP_S * arguments.steps)}"
    device = "the GPU" if on_gpu else "the CPU"
    _say(f"2/4 train on {device}, {arguments.steps} steps, {limit} ({duration})")
    train("healthy", run_id=healthy_id, leak="none", steps=arguments.steps).check()
    _say(f"3/4 train with a leak ({arguments.leak}) until memory runs out (about a minute)")
    leaking_process = train(
        "leaking", run_id=leaking_id, leak=arguments.leak, steps=3 * arguments.steps
    )
    _say("4/4 wait for the server's last message to Slack (a few seconds)")
    slack.wait_for(lambda message: message.is_end_of(leaking_id), MAX_WAIT_S)
    healthy = summary.read_healthy(server, healthy_id)
    return healthy, summary.read_leaking(server, leaking_id, leaking_process, slack.messages)


def _serve_until_interrupted(server: processes.Server) -> None:
    _say(f"the server runs on {server.url} until Ctrl-C, which also deletes the demo's files")
    with contextlib.suppress(KeyboardInterrupt, SystemExit):  # the expected end
        server.process.wait()


def _say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


def _print_output(line: str) -> None:
    print(f"    {line}", file=sys.stderr, flush=True)
