"""Start the server: API, pages, metrics and the worker."""

from __future__ import annotations

import argparse
import os
import sys

from memagent_server import supervisor
from memagent_server.settings import DEFAULT_LISTEN, Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help=f"address to listen on (default {DEFAULT_LISTEN}; port 0 picks a free one)",
    )
    parser.add_argument(
        "--role",
        choices=("all", "web", "worker"),
        default="all",
        help="web: no worker; worker: only evaluate, notify and prune",
    )
    parser.add_argument(
        "--workers", type=_count, default=1, metavar="N", help="web processes (default 1)"
    )
    parser.add_argument("--parent", type=int, default=None, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    listen = arguments.listen or os.environ.get("MEMAGENT_LISTEN")
    if listen:
        os.environ["MEMAGENT_LISTEN"] = supervisor.with_free_port(
            listen
        )  # web processes and worker read it there
    settings = Settings.from_environ()
    if arguments.role == "worker":
        return supervisor.serve_worker(settings, parent_pid=arguments.parent)
    return supervisor.serve(
        settings,
        workers=arguments.workers,
        with_worker=arguments.role == "all",
        announce=lambda text: print(text, flush=True),
        is_terminal=sys.stdout.isatty(),
        parent_pid=arguments.parent,
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes: give 1 or more")
    return int(text)
