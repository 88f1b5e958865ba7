"""List runs, newest first: the server's, or those recorded to files on this machine."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

from memagent.api.client import Api
from memagent.cli import say
from memagent.errors import SettingError
from memagent.settings import Settings
from memagent.units import format_bytes, format_duration

STATUSES = ("running", "completed", "stopped", "failed", "oom", "lost_contact")
DEFAULT_ORDER = "-created_at"
_MAX_RUNS = 200
_HEADER = ("ID", "NAME", "STATUS", "STEP", "PEAK / LIMIT", "FORECAST", "STARTED")
_NAME_COLUMN = 1
"""The column that shrinks on a narrow terminal; ids must stay copyable and numbers readable."""
_MIN_NAME_WIDTH = 12
_DISPENSABLE = ("STARTED", "STEP", "FORECAST")
"""Columns that a terminal too narrow for all leaves out, the first one first."""
_COLOURS = {
    "oom": "31",
    "failed": "31",
    "lost_contact": "33",
    "running": "32",
    "warning": "33",
    "critical": "31",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--status", choices=STATUSES, help="only runs with this status")
    parser.add_argument("--project", help="only runs of this project")
    parser.add_argument("--where", metavar="FILTER", help="only runs that match (docs/filters.md)")
    parser.add_argument(
        "--order",
        default=DEFAULT_ORDER,
        metavar="COLUMN",
        help="any column of filters; --order=-COLUMN: the highest first (default: -created_at)",
    )
    parser.add_argument(
        "--columns",
        type=lambda text: tuple(filter(None, map(str.strip, text.split(",")))),
        default=(),
        metavar="NAMES",
        help="further columns, such as config.lr,scalar.loss",
    )
    parser.add_argument(
        "--by",
        metavar="COLUMNS",
        help="groups of runs by up to three columns instead, such as project,config.lr",
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=20,
        metavar="N",
        help=f"how many, 1 to {_MAX_RUNS} (default: 20)",
    )
    parser.add_argument("--server", help="address of the server; default MEMAGENT_SERVER")
    parser.add_argument("--token", help="access token with scope read; default MEMAGENT_TOKEN")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.limit <= _MAX_RUNS:
        raise SettingError(f"--limit must be 1 to {_MAX_RUNS}, got {arguments.limit}")
    settings = Settings.from_environ(server=arguments.server, token=arguments.token)
    if arguments.by:
        return _print_groups(arguments, settings)
    summaries = _find_runs(arguments, settings)
    if arguments.json:
        print(json.dumps({"server": settings.server, "runs": summaries}, indent=2))
    elif summaries:
        in_color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        rows = [_row(run, time.time()) for run in summaries]
        header = (*_HEADER, *arguments.columns)
        for line in table(rows, _terminal_width(), header=header, in_color=in_color):
            print(line)
    else:
        place = f"on {settings.server}" if settings.server else f"in {settings.directory}"
        say(f"no matching runs {place}")
    return 0


def _find_runs(arguments: argparse.Namespace, settings: Settings) -> list[dict[str, Any]]:
    """Return the first runs of the server, or else of the folder of run files."""
    source = settings.server or settings.directory
    if settings.server is None and not Path(source).is_dir():
        return []
    with Api(source, token=settings.token) as api:
        runs = api.runs(
            project=arguments.project,
            status=arguments.status,
            where=arguments.where,
            order=arguments.order,
            columns=arguments.columns,
        )
        return [run.summary for run in islice(runs, arguments.limit)]


def _print_groups(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print groups of runs, each followed by its subgroups, which are indented."""
    with Api(settings.server or settings.directory, token=settings.token) as api:
        groups = api.groups(
            arguments.by,
            columns=arguments.columns,
            order="-runs" if arguments.order == DEFAULT_ORDER else arguments.order,
            project=arguments.project,
            status=arguments.status,
            where=arguments.where,
            limit=arguments.limit,
        )
    if arguments.json:
        print(json.dumps({"server": settings.server, "groups": groups}, indent=2))
        return 0
    header = ("GROUP", "RUNS", "STATUS", "PEAK", *arguments.columns)
    rows = [header, *(_group_row(group) for group in groups)]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        print(_line(row, widths, in_color=False))
    return 0


def _group_row(group: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a group: a column's mean, with its range if its values differ."""
    name, value = list(group["key"].items())[-1]
    indent = "  " * (len(group["key"]) - 1)
    statuses = ", ".join(f"{count} {status}" for status, count in group["statuses"].items())
    figures = (
        f"{figure['mean']:g}"
        + (f" ({figure['min']:g} to {figure['max']:g})" if figure["min"] < figure["max"] else "")
        if figure["runs"]
        else "–"
        for figure in group["columns"].values()
    )
    peak = group["peak_bytes"]["max"]
    return (
        f"{indent}{_printable(name)} {_cell(value)}",
        f"{group['runs']:,}",
        statuses,
        format_bytes(peak) if peak is not None else "–",
        *figures,
    )


def _terminal_width() -> int | None:
    """Return the width of the terminal, or COLUMNS; None for a pipe, which gets full names."""
    return (
        shutil.get_terminal_size().columns
        if sys.stdout.isatty() or "COLUMNS" in os.environ
        else None
    )


def _row(run: dict[str, Any], now: float) -> tuple[str, ...]:
    forecast, total = run["forecast"] or {}, run["total_steps"]
    name, step = run["name"], run["step"] or 0
    return (
        _printable(run["id"]),
        _printable(name) if name and name != run["id"] else "–",
        run["status"],
        f"{step:,} of {total:,}" if total else f"{step:,}",
        _ratio(format_bytes(run["peak_bytes"]), format_bytes(run["limit_bytes"])),
        _forecast(forecast) if run["status"] == "running" else "–",
        _ago(run["started_at"], now),
        *(_cell(value) for value in run["columns"].values()),
    )


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return _printable(value if isinstance(value, str) else json.dumps(value))


def _ratio(peak: str, limit: str) -> str:
    """Return `3.10 / 8.00 GiB`, with the unit once if both have the same."""
    number, _, unit = peak.partition(" ")
    return f"{number if unit and limit.endswith(f' {unit}') else peak} / {limit}"


def _printable(text: str) -> str:
    """Replace control characters: a name may come from anyone, and is printed on a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _forecast(forecast: dict[str, Any]) -> str:
    level, eta = forecast.get("level"), forecast.get("eta_step")
    if level is None:
        return "–"
    return f"{level} at {eta:,.0f}" if level != "ok" and eta is not None else str(level)


def _ago(started_at: str | float | None, now: float) -> str:
    if started_at is None:
        return "–"
    if isinstance(started_at, str):
        moment = datetime.fromisoformat(started_at.replace("Z", "+00:00"))
        started_at = moment.astimezone(timezone.utc).timestamp()
    return f"{format_duration(max(0.0, now - started_at))} ago"


def table(
    rows: Sequence[tuple[str, ...]],
    columns: int | None,
    *,
    header: tuple[str, ...] = _HEADER,
    in_color: bool = False,
) -> list[str]:
    """Return lines of at most `columns` characters; None means no limit.

    Names are shortened, and if that isn't enough, columns are left out.
    """
    lines = [header, *rows]
    for name in (None, *_DISPENSABLE):
        places = [index for index, title in enumerate(lines[0]) if title != name]
        lines = [tuple(cells[index] for index in places) for cells in lines]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        room = inf if columns is None else columns - sum(widths) - 2 * (len(widths) - 1)
        if widths[_NAME_COLUMN] + min(0, room) >= min(_MIN_NAME_WIDTH, widths[_NAME_COLUMN]):
            break
    if room < 0:
        widths[_NAME_COLUMN] = max(_MIN_NAME_WIDTH, widths[_NAME_COLUMN] + int(room))
    return [_line(cells, widths, in_color=in_color) for cells in lines]


def _line(cells: Sequence[str], widths: Sequence[int], *, in_color: bool) -> str:
    cut = [
        text if len(text) <= width else f"{text[: width - 1]}…"
        for text, width in zip(cells, widths, strict=True)
    ]
    padded = [text.ljust(width) for text, width in zip(cut, widths, strict=True)]
    if in_color:
        padded = [_colored(text) for text in padded]
    return "  ".join(padded).rstrip()


def _colored(text: str) -> str:
    code = _COLOURS.get(text.split(" ", maxsplit=1)[0])
    return f"\033[{code}m{text}\033[0m" if code else text
