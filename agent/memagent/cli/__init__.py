"""`memagent VERB`: one module a verb, imported only when it is called.

A verb's module has a docstring, `add_arguments(parser)` and `run(arguments) -> int`, the exit status. Errors of memagent become one
line on stderr and exit status 1, bad usage exits with 2, and nobody sees a traceback of ours. What was asked for goes to stdout; that
there is none of it, or why it could not be done, goes to stderr (`say`).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from memagent import __version__
from memagent.errors import MemagentError, SettingError

VERBS = {
    "run": "attach to a training script without touching it",
    "estimate": "say what a training step will need, before it runs",
    "sync": "upload runs that were recorded without a server, or while it was away",
    "runs": "list runs: the server's, or those recorded here",
    "replay": "say what the forecaster would have warned of in a recorded run",
    "doctor": "explain what is wrong in this environment",
    "demo": "train for real, leak for real, and be warned before it dies",
    "serve": "start the server: API, pages, metrics and the worker",
    "db": "upgrade the database, or show its version",
    "export": "write all samples of a run as CSV or Parquet",
    "prune": "let go of the samples of old runs, or of the runs",
    "notify": "list the channels that are set up, or send one a test message",
    "token": "create, list and revoke access tokens",
    "dashboards": "push the dashboards to Grafana, or write them to a folder",
    "completion": "print a script that makes the shell complete verbs and options",
}
SERVER_PACKAGES = (
    "flask",
    "sqlalchemy",
    "alembic",
    "granian",
    "prometheus_client",
    "slack_sdk",
    "memagent_server",
)


class Verb(Protocol):
    """What the module of a verb offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, arguments: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command `memagent`; returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    verb_name = argv[0] if argv else ""
    if verb_name not in VERBS:
        return _top_level(argv)
    try:
        verb = _load(verb_name)
        return verb.run(_parser(verb_name, verb).parse_args(argv[1:]))
    except SettingError as error:
        return _complain(error, 2)
    except MemagentError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def parser_of(verb_name: str) -> argparse.ArgumentParser:
    """The parser of one of `VERBS`. Raises MemagentError where it needs packages that are not installed."""
    return _parser(verb_name, _load(verb_name))


def _parser(verb_name: str, verb: Verb) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"memagent {verb_name}", description=verb.__doc__, allow_abbrev=False
    )
    verb.add_arguments(parser)
    return parser


def _top_level(argv: Sequence[str]) -> int:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {what}" for name, what in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="memagent",
        description="A memory-aware experiment tracker for PyTorch.",
        epilog=f"verbs:\n{verbs}\n\n`memagent VERB --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="memagent VERB [OPTIONS]",
    )
    parser.add_argument("--version", action="version", version=f"memagent {__version__}")
    parser.add_argument("verb", nargs="?", choices=list(VERBS), help=argparse.SUPPRESS)
    parser.parse_args(argv)
    parser.print_help(sys.stderr)
    return 2


def _load(name: str) -> Verb:
    try:
        module: Verb = importlib.import_module(f"memagent.cli.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in SERVER_PACKAGES:
            raise
        raise MemagentError(
            f"`memagent {name}` needs the server's packages: pip install 'memagent[server]'"
        ) from error
    return module


def say(text: object) -> None:
    """A line for whoever looks on, apart from what the verb prints."""
    print(f"memagent: {text}", file=sys.stderr)


def _complain(error: Exception, status: int) -> int:
    say(error)
    return status
