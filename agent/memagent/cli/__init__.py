"""`memagent VERB`: one module per verb, imported only when it's called.

A verb's module has a docstring, `add_arguments(parser)` and `run(arguments) -> int`, the exit
status. Errors of memagent become one line on stderr and exit status 1; bad usage exits with 2. The
result goes to stdout, notices and errors go to stderr (`say`).
"""

from __future__ import annotations

import argparse
import gc
import importlib
import keyword
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from memagent import __version__
from memagent.cli.parser import SentenceParser
from memagent.errors import MemagentError, OptionError, SettingError

VERBS = {
    "run": "run a training script with memagent attached, without editing it",
    "estimate": "estimate the memory of a training step before it runs",
    "fit": "choose the cheapest changes that make a training step fit a GPU, and print their code",
    "rehearse": "rehearse a training script on a GPU that isn't there: does it fit?",
    "import": "import runs that TensorBoard, W&B or MLflow recorded",
    "sync": "upload runs that were recorded without a server, or while it was down",
    "runs": "list runs: the server's, or those recorded on this machine",
    "explain": "explain why a run died: cause, line, change and patch",
    "waste": "show unused GPU memory by user, project and card",
    "mcp": "serve runs, explanations and estimates to an assistant (Model Context Protocol)",
    "replay": "replay a recorded run and show what the forecaster would have warned of",
    "doctor": "check this environment and explain what is wrong",
    "demo": "run a demo: a real training with a real leak, and the warning before it crashes",
    "serve": "start the server: API, pages, metrics and the worker",
    "db": "upgrade the database, or show its version",
    "export": "write all samples of a run as CSV or Parquet",
    "prune": "delete samples of old runs, or whole runs",
    "notify": "list the configured channels, or send a test message",
    "token": "create, list and revoke access tokens",
    "dashboards": "push the dashboards to Grafana, or write them to a folder",
    "completion": "print a script for shell completion of verbs and options",
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
    """Interface of a verb's module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, arguments: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command `memagent` and return the exit status. `argv` is by default the process's."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    status = _run(arguments)
    if argv is None and arguments[:1] != ["run"]:  # a script ends as without memagent
        gc.freeze()  # otherwise Python looks for garbage among all modules when it ends
    return status


def _run(argv: Sequence[str]) -> int:
    verb_name = argv[0] if argv else ""
    if verb_name not in VERBS:
        return _top_level(argv)
    try:
        verb = _load(verb_name)
        return verb.run(_parser(verb_name, verb).parse_args(argv[1:]))
    except SettingError as error:
        return _report_error(error, 2)
    except MemagentError as error:
        return _report_error(error, 1)
    except KeyboardInterrupt:
        if verb_name == "run":  # the script's: Python ends the process by the signal
            raise
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def parser_of(verb_name: str) -> argparse.ArgumentParser:
    """Return the parser of a verb. Raises MemagentError if its packages aren't installed."""
    return _parser(verb_name, _load(verb_name))


def _parser(verb_name: str, verb: Verb) -> argparse.ArgumentParser:
    parser = SentenceParser(
        prog=f"memagent {verb_name}", description=verb.__doc__, allow_abbrev=False
    )
    verb.add_arguments(parser)
    return parser


def _top_level(argv: Sequence[str]) -> int:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="memagent",
        description="A memory-aware experiment tracker for PyTorch.",
        epilog=f"verbs:\n{verbs}\n\nRun `memagent VERB --help` for details.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="memagent VERB [OPTIONS]",
    )
    parser.add_argument("--version", action="version", version=f"memagent {__version__}")
    parser.add_argument("verb", nargs="?", choices=list(VERBS), help=argparse.SUPPRESS)
    parser.parse_args(argv)
    parser.print_help(sys.stderr)
    return 2


def _load(name: str) -> Verb:
    collects_garbage = gc.isenabled()
    gc.disable()  # all objects of an import stay, and looking for garbage takes a sixth of it
    try:
        module_name = f"{name}_" if keyword.iskeyword(name) else name
        module: Verb = importlib.import_module(f"memagent.cli.{module_name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in SERVER_PACKAGES:
            raise
        raise MemagentError(
            f"`memagent {name}` needs the server's packages: pip install 'memagent[server]'"
        ) from error
    finally:
        if collects_garbage:
            gc.enable()
    return module


def say(text: object) -> None:
    """Print a notice to stderr, apart from the verb's output."""
    print(f"memagent: {text}", file=sys.stderr)


def _as_typed(error: OptionError) -> str:
    """Return the message with the option as it is typed; a model's `inputs` are --input's."""
    name = "input" if error.option == "inputs" else error.option
    return f"--{name.replace('_', '-')} {error.problem}"


def _report_error(error: Exception, status: int) -> int:
    say(_as_typed(error) if isinstance(error, OptionError) else error)
    return status
