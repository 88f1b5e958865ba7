"""Print a script for shell completion; `docs/cli.md` says where each shell expects it."""

from __future__ import annotations

import argparse

from memagent.cli import VERBS, parser_of
from memagent.errors import MemagentError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish", "powershell"))


def run(arguments: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        raise MemagentError(
            "`memagent completion` needs shtab: pip install 'memagent[completion]'"
        ) from error
    print(shtab.complete(root_parser(), arguments.shell))
    return 0


def root_parser() -> argparse.ArgumentParser:
    """Return one parser with all verbs, whose free values complete as file names."""
    root = argparse.ArgumentParser(prog="memagent")
    verbs = root.add_subparsers()
    for name, summary in VERBS.items():
        try:
            parser = parser_of(name)
        except MemagentError:  # the server's packages are not installed
            continue
        _complete_files(parser)
        verbs.add_parser(name, help=summary, parents=[parser], add_help=False)
    return root


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Mark free values for shtab. argparse lists its actions in `_actions` only."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                _complete_files(subparser)
        elif action.nargs != 0 and action.choices is None:
            action.complete = "file"  # type: ignore[attr-defined]
