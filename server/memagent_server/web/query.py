"""Query parameters: read, bounded, and refused by name."""

from __future__ import annotations

import re
from collections.abc import Collection

from flask import request

from memagent_server.problems import Problem


def text(name: str) -> str | None:
    """A parameter as it was given, None where it is missing or empty."""
    value = request.args.get(name, "").strip()
    if "\0" in value or len(value) > 1000:
        raise Problem(422, f"{name}: more than 1,000 characters, or a NUL among them", field=name)
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
