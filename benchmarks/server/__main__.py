"""Command line: measure every group, then print one table. See `benchmarks.server`."""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import benchmarks.server
from benchmarks.figures import Figure, table
from benchmarks.machine import describe
from benchmarks.server import (
    cycle,
    disk,
    exports,
    first_loads,
    fleet,
    fuzz,
    history,
    in_process,
    over_http,
    paced,
    peers,
    reads,
    scrape,
    worst,
)


class Group(Protocol):
    """A module of this package."""

    TITLE: str

    def measure(self, quick: bool) -> list[Figure]:
        """Return the rows. With `quick`, measure a few rounds only: enough to show that it works."""


GROUPS: dict[str, Group] = {
    "in_process": in_process,
    "over_http": over_http,
    "paced": paced,
    "peers": peers,
    "cycle": cycle,
    "fleet": fleet,
    "reads": reads,
    "scrape": scrape,
    "disk": disk,
    "exports": exports,
    "history": history,
    "first_loads": first_loads,
    "worst": worst,
    "fuzz": fuzz,
}

FAILED = "failed:"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table. Return 1 if a group failed, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server", description=benchmarks.server.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="few rounds: shows that it works, not how fast it is"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=GROUPS,
        default=list(GROUPS),
        metavar="GROUP",
        help="some groups",
    )
    options = parser.parse_args(arguments)
    sections = {GROUPS[name].TITLE: _measured(name, options.quick) for name in options.only}
    machine = {**describe(), "sqlite": sqlite3.sqlite_version}
    print(
        f"{machine['processor']}, {machine['cores']} cores, load {machine['load']:.1f}\n{table(sections)}"
    )
    if options.json:
        rows = {
            title: [figure.to_dict() for figure in figures] for title, figures in sections.items()
        }
        text = json.dumps({"machine": machine, "quick": options.quick, "sections": rows}, indent=2)
        options.json.write_text(text + "\n")
    return (
        1
        if any(
            figure.note.startswith(FAILED) for figures in sections.values() for figure in figures
        )
        else 0
    )


def _measured(name: str, quick: bool) -> list[Figure]:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{name} ...", end="\r", file=sys.stderr, flush=True)
    try:
        return GROUPS[name].measure(quick)
    except Exception as error:  # noqa: BLE001 - one group that fails must not hide the others
        return [Figure(name, "", note=f"{FAILED} {type(error).__name__}: {error}")]


if __name__ == "__main__":
    sys.exit(main())
