"""Show the GPU memory that runs had, needed and left unused, by user, project, card or run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from memagent.api.client import Api
from memagent.cli import say
from memagent.errors import SettingError
from memagent.units import format_bytes

KEYS = ("user", "project", "card", "run")
SORTS = {
    "unused": "unused_gib_hours",
    "needed": "needed_gib_hours",
    "available": "available_gib_hours",
    "gpu-hours": "gpu_hours",
    "too-large": "too_large_gpu_hours",
    "cost": "cost",
}
_MAX_DAYS = 3650
_MAX_ROWS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--days",
        type=int,
        default=7,
        metavar="N",
        help=f"days to look back, 1 to {_MAX_DAYS} (default: 7)",
    )
    parser.add_argument(
        "--by",
        default="user,project,card",
        metavar="KEYS",
        help=f"keys of a row, of {', '.join(KEYS)} (default: user,project,card)",
    )
    parser.add_argument("--project", help="only runs of this project")
    parser.add_argument("--sort", choices=list(SORTS), default="unused", help="largest first")
    parser.add_argument(
        "--limit",
        type=int,
        default=20,
        metavar="N",
        help=f"how many rows, 1 to {_MAX_ROWS} (default: 20)",
    )
    parser.add_argument(
        "--source", help="a server's address or a database's URL; default: that of the settings"
    )
    parser.add_argument("--token", help="access token with scope read; default MEMAGENT_TOKEN")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    keys = [key for key in map(str.strip, arguments.by.split(",")) if key]
    _check(arguments, keys)
    with Api(arguments.source, token=arguments.token) as api:
        waste = api.waste(
            days=arguments.days,
            by=keys,
            project=arguments.project,
            order=SORTS[arguments.sort],
            limit=arguments.limit,
        )
    if arguments.json:
        print(json.dumps(waste, indent=2))
    elif waste["rows"]:
        for line in table(waste):
            print(line)
        if waste["left_out"]:
            say(f"{waste['left_out']:,} more rows: see --limit, --project and --by")
    else:
        say(f"no run used a GPU in the last {arguments.days} days")
    return 0


def _check(arguments: argparse.Namespace, keys: Sequence[str]) -> None:
    unknown = [key for key in keys if key not in KEYS]
    if unknown or not keys:
        raise SettingError(f"--by takes {', '.join(KEYS)}, not {', '.join(unknown) or 'nothing'}")
    for name, most in (("days", _MAX_DAYS), ("limit", _MAX_ROWS)):
        value = getattr(arguments, name)
        if not 1 <= value <= most:
            raise SettingError(f"--{name} must be 1 to {most}, got {value}")


def table(waste: dict[str, Any]) -> list[str]:
    """Return the lines of a table: a heading, the rows, and the sums of all rows."""
    keys = waste["by"]
    with_cost = waste["total"]["cost"] is not None
    heading = [*(key.upper() for key in keys), "GPU-HOURS", "GIB-HOURS", "NEEDED", "UNUSED"]
    heading += [f"COST {waste['currency'] or ''}".strip()] if with_cost else []
    heading += ["CARD TOO LARGE", "HIGHEST NEED", "WOULD HAVE DONE"]
    rows = [[_key(row, key) for key in keys] + _cells(row, with_cost) for row in waste["rows"]]
    total = ["total", *("" for _ in keys[1:]), *_cells(waste["total"], with_cost)]
    lines = [heading, *rows, total]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    texts = (*range(len(keys)), len(heading) - 1)
    return [_line(cells, widths, texts) for cells in lines]


def _line(cells: Sequence[str], widths: Sequence[int], texts: Sequence[int]) -> str:
    placed = zip(cells, widths, strict=True)
    aligned = (
        cell.ljust(width) if index in texts else cell.rjust(width)
        for index, (cell, width) in enumerate(placed)
    )
    return "  ".join(aligned).rstrip()


def _key(row: dict[str, Any], key: str) -> str:
    name = row["run_name"] if key == "run" and row["run_name"] else row[key]
    text = str(name or "–").removeprefix("NVIDIA ")
    # names may come from anyone, and are printed on a terminal
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _cells(row: dict[str, Any], with_cost: bool) -> list[str]:
    whole = row["available_gib_hours"]
    cost = [_amount(row["cost"])] if with_cost else []
    return [
        _amount(row["gpu_hours"]),
        _amount(whole),
        _share(row["needed_gib_hours"], whole),
        _share(row["unused_gib_hours"], whole),
        *cost,
        _share(row["too_large_gpu_hours"], row["gpu_hours"]),
        format_bytes(row["peak_bytes"]),
        (row["smallest_card"] or "–").removeprefix("NVIDIA "),
    ]


def _amount(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"
