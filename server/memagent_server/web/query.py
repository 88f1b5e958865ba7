"""Query parameters: read, bounded, and refused by name."""

from __future__ import annotations

import re
from collections.abc import Collection

from flask import request

from memagent_server.problems import Problem

_LONGEST = 1000


def text(name: str) -> str | None:
    """A parameter as it was given, None where it is missing or empty."""
    value = request.args.get(name, "").strip()
    if "\0" in value or len(value) > _LONGEST:
        raise Problem(422, f"{name}: more than {_LONGEST:,} characters, or a NUL among them", field=name)
    return value or None


def number(name: str, *, least: int, most: int) -> int | None:
    """A whole number within bounds. Raises Problem 422."""
    value = text(name)
    if value is None:
        return None
    if re.fullmatch(r"-?[0-9]{1,19}", value) is None or not least <= int(value) <= most:
        raise Problem(422, f"{name}: {value!r} is no whole number from {least} to {most}", field=name)
    return int(value)


def choice(name: str, options: Collection[str]) -> str | None:
    """One of the options. Raises Problem 422."""
    value = text(name)
    if value is not None and value not in options:
        raise Problem(422, f"{name}: {value!r} is none of {', '.join(options)}", field=name)
    return value


def names(name: str, *, most: int) -> list[str] | None:
    """A comma-separated list. Raises Problem 422 for more than `most` of them."""
    value = text(name)
    if value is None:
        return None
    found = [part.strip() for part in value.split(",") if part.strip()]
    if len(found) > most:
        raise Problem(422, f"{name}: at most {most} of them", field=name)
    return found


def run_ids(name: str, *, fewest: int, most: int) -> list[str]:
    """Different runs, separated by commas or each in a parameter of its own, as a form sends them. Raises Problem 422."""
    parts = [part.strip() for value in request.args.getlist(name) for part in value.split(",")]
    found = list(dict.fromkeys(part for part in parts if part))
    if not fewest <= len(found) <= most:
        raise Problem(
            422, f"{name}: name {fewest} to {most} runs, separated by commas; {len(found)} are named", field=name
        )
    if any("\0" in part or len(part) > _LONGEST for part in found):
        raise Problem(422, f"{name}: a run's id is shorter than that, and holds no NUL", field=name)
    return found
