"""Compare two readings of the same settings, for the values that a change replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import msgspec

from memagent_server.schemas.changes import ValueChange

MAX_LENGTH = 200
"""Characters of a name or text."""
MAX_CHARACTERS = 2_000
"""Of all values of a change. The last says how many are left out."""
_MOMENTS = ("updated_at", "updated_by")
"""Fields that the audit log has anyway."""


def changed_values(before: object, after: object) -> list[ValueChange]:
    """Return the values that differ, by the path of their names, within MAX_CHARACTERS.

    Both readings are schemas, or dicts and lists of them. Items of a list are known by their names;
    a list without names is one value. The order of the same named items is a value, too.
    """
    old, new = (dict(_leaves("", msgspec.to_builtins(reading))) for reading in (before, after))
    changed = [
        ValueChange(name[:MAX_LENGTH], _text(old.get(name)), _text(new.get(name)))
        for name in {**old, **new}
        if _differs(old.get(name), new.get(name))
    ]
    sizes = accumulate(len(one.name) + len(one.old or "") + len(one.new or "") for one in changed)
    fitting = sum(size <= MAX_CHARACTERS for size in sizes)
    if fitting < len(changed):
        changed[fitting:] = [ValueChange(f"and {len(changed) - fitting:,} more", None, None)]
    return changed


def _differs(old: Any, new: Any) -> bool:
    if isinstance(old, _Names) or isinstance(new, _Names):
        return old != new and old is not None and new is not None and set(old) == set(new)
    return old != new and not (_is_empty(old) and _is_empty(new))


class _Names(list[str]):
    """The names of a list's items, in their order."""


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple)) and value and all(_has_name(item) for item in value):
        yield _join(path, "order"), _Names(item["name"] for item in value)
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


def _is_empty(value: Any) -> bool:
    return value is None or value in ("", [], ())


def _text(value: Any) -> str | None:
    """Return a value as text; None for one that isn't there, or says nothing."""
    if _is_empty(value):
        return None
    if isinstance(value, (list, tuple)):
        text = ", ".join(map(str, value))
    elif isinstance(value, bool):
        text = "on" if value else "off"
    else:
        is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
        text = str(int(value) if is_whole else value)
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"
