"""Compare two readings of the same settings, for the values that a change replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec

from memagent_server.schemas.changes import ValueChange

MAX_VALUES = 50
MAX_LENGTH = 200
_MOMENTS = ("updated_at", "updated_by")
"""Fields that the audit log has anyway."""


def changed_values(before: object, after: object) -> list[ValueChange]:
    """Return the values that differ, by the path of their names, at most MAX_VALUES.

    Both readings are schemas, or dicts and lists of them. Items of a list are known by their names;
    a list without names is one value. The order of named items is a value, too.
    """
    old, new = (
        {name: _text(value) for name, value in _leaves("", msgspec.to_builtins(reading))}
        for reading in (before, after)
    )
    differing = (name for name in {**old, **new} if old.get(name) != new.get(name))
    return [
        ValueChange(name[:MAX_LENGTH], _cut(old.get(name)), _cut(new.get(name)))
        for name in islice(differing, MAX_VALUES)
    ]


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple)) and value and all(_has_name(item) for item in value):
        if len(value) > 1:
            yield _join(path, "order"), [item["name"] for item in value]
        value = {item["name"]: {**item, "name": None} for item in value}
    if not isinstance(value, Mapping):
        yield path, value
        return
    for name, item in value.items():
        if name not in _MOMENTS:
            yield from _leaves(_join(path, name), item)


def _has_name(item: object) -> bool:
    return isinstance(item, Mapping) and "name" in item


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else str(name)


def _text(value: Any) -> str | None:
    """Return a value as text; None for one that isn't there, or says nothing."""
    if value is None or value in ("", [], ()):
        return None
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"
