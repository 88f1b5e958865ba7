"""Explain why a run ended as it did: cause, line, change, patch and evidence."""

from __future__ import annotations

import argparse
import json

from memagent.api.client import Api


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_id", metavar="RUN_ID", help="id of the run")
    parser.add_argument(
        "--source",
        help="a server's address, a database's URL or a folder of run files; default: that of the "
        "settings",
    )
    parser.add_argument("--token", help="access token with scope read; default MEMAGENT_TOKEN")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    with Api(arguments.source, token=arguments.token) as api:
        explanation = api.run(arguments.run_id).explain()
    if arguments.json:
        print(json.dumps(explanation.to_dict(), indent=2))
    else:
        print(_printable(explanation.text()))
    return 0


def _printable(text: str) -> str:
    """Replace control characters: names and source may come from anyone."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)
