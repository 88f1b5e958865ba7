"""Columns of runs that a filter can name, and what each can be compared with."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from difflib import get_close_matches
from typing import Literal

from memagent.errors import FilterError
from memagent.filters.expression import Operand, Operator, RunColumn

ColumnType = Literal["text", "number", "time", "tags"]

RUN_COLUMNS: dict[str, ColumnType] = {
    "id": "text",
    "project": "text",
    "name": "text",
    "user": "text",
    "host": "text",
    "status": "text",
    "error": "text",
    "failure": "text",
    "tags": "tags",
    "step": "number",
    "total_steps": "number",
    "world_size": "number",
    "peak_ratio": "number",
    "peak_bytes": "number",
    "created_at": "time",
    "started_at": "time",
    "last_seen_at": "time",
    "finished_at": "time",
}
STATUSES = ("running", "completed", "stopped", "failed", "oom", "lost_contact")
_SEGMENT = re.compile(r"\"([^\"]*)\"|'([^']*)'|([^.\"']+)")


def column_of(name: str, argument: str = "where") -> RunColumn:
    """Return the column of a name as written. Raises FilterError with the nearest one.

    Messages begin with the argument that has the name.
    """
    segments = ["".join(parts) for parts in _SEGMENT.findall(name)]
    source, path = segments[0], segments[1:]
    if source in ("config", "scalar"):
        if not path or any(not segment or '"' in segment for segment in path):
            raise FilterError(f"{argument}: {source!r} needs a name, as in {source}.lr.")
        if source == "config":
            return RunColumn("config", tuple(path))
        return RunColumn("scalar", (".".join(path),))
    if name in RUN_COLUMNS:
        return RunColumn("run", (name,))
    if close := nearest(name, RUN_COLUMNS):
        raise FilterError(f"{argument}: there is no column {name!r}; the nearest is {close!r}.")
    raise FilterError(
        f"{argument}: there is no column {name!r}; write config.{name} for a setting of the run, "
        f"scalar.{name} for a value that it logs."
    )


def order_of(text: str) -> tuple[RunColumn, bool]:
    """Return the column of an order, and True if the highest comes first, as by "-config.lr".

    Raises FilterError.
    """
    return column_of(text.removeprefix("-"), "sort"), text.startswith("-")


def check_operand(column: RunColumn, operator: Operator, value: Operand) -> Operand:
    """Return the constant as the column has it: a time in seconds. Raises FilterError."""
    is_equality = operator in ("=", "!=")
    name = column.path[0] if column.source == "run" else f"{column.source}.{'.'.join(column.path)}"
    if (value is None or isinstance(value, bool)) and not is_equality:
        raise FilterError(f"where: {name} can be = or != {_spelled(value)}, not {operator}.")
    if column.source != "run" or value is None:
        return value
    kind = RUN_COLUMNS[name]
    if kind == "tags" and (operator != "=" or not isinstance(value, str)):
        raise FilterError(f'where: {name} are tested by "baseline" in {name}.')
    if kind == "time":
        return _seconds(name, value)
    if (kind == "number") != (isinstance(value, int | float) and not isinstance(value, bool)):
        example = '"text" in quotes' if kind in ("text", "tags") else "a number"
        raise FilterError(f"where: {name} is compared with {example}, not {_spelled(value)}.")
    if name == "status" and value not in STATUSES and is_equality:
        close = nearest(str(value), STATUSES)
        hint = f"the nearest is {close!r}" if close else f"it is one of {', '.join(STATUSES)}"
        raise FilterError(f"where: status is never {value!r}; {hint}.")
    return value


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that is most like a wrong one, None if none is."""
    close = get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    return close[0] if close else None


def _seconds(name: str, value: Operand) -> float:
    """Return a time in seconds since the epoch; one without a zone is in UTC."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    try:
        moment = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        return zoned.timestamp()
    except (ValueError, OverflowError):
        raise FilterError(
            f'where: {name} is compared with a time such as "2026-01-31" or '
            f'"2026-01-31T08:00:00Z", not {_spelled(value)}.'
        ) from None


def _spelled(value: Operand) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)
