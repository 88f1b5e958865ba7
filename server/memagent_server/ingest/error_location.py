"""Which entry of a map is at fault: msgspec says `chunks[0].columns[...]`, people need `chunks[0].columns.loss`.

Each `[...]` is found by halving: the map is cut to one half of its entries; where the message still fails at the same place, the
culprit is in that half, else in the other.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from memagent.wire.codec import JSON

MAX_SEARCHED_BYTES = 4 * 2**20
"""In larger bodies the search would cost too much; msgspec's own path has to do."""

_UNKNOWN = "[...]"
_Path = tuple[str | int, ...]


def locate(body: bytes, kind: type[Any], content_type: str, field: str | None) -> str | None:
    """The exact place of the first error of `body` as a `kind`, where `field` is msgspec's path; None where there is no telling."""
    if field is None or _UNKNOWN not in field or len(body) > MAX_SEARCHED_BYTES:
        return None
    try:
        return _Search(body, kind, content_type, field).place()
    except (msgspec.MsgspecError, TypeError, LookupError, RecursionError):
        return None  # keys that are no strings, or a path this does not understand


class _Search:
    def __init__(self, body: bytes, kind: type[Any], content_type: str, field: str) -> None:
        self._kind, self._field = kind, field
        self._wire = msgspec.json if content_type == JSON else msgspec.msgpack
        self._message: Any = self._wire.decode(body)

    def place(self) -> str:
        path: _Path = ()
        shown = ""
        for token in re.findall(r"\[\.\.\.\]|\[\d+\]|[^.\[\]]+", self._field):
            if token == _UNKNOWN:
                key = self._culprit(path, _at(self._message, path))
                path, shown = (*path, key), f"{shown}.{key}"
            elif token.startswith("["):
                path, shown = (*path, int(token[1:-1])), f"{shown}{token}"
            else:
                path, shown = (*path, token), f"{shown}.{token}"
        return shown.removeprefix(".")

    def _culprit(self, path: _Path, entries: dict[str, Any]) -> str:
        keys = list(entries)
        while len(keys) > 1:
            half = len(keys) // 2
            fails = self._fails(
                _replaced(self._message, path, {key: entries[key] for key in keys[:half]})
            )
            keys = keys[:half] if fails else keys[half:]
        return keys[0]

    def _fails(self, message: Any) -> bool:
        """Whether the message still fails at the place we look for."""
        try:
            self._wire.decode(self._wire.encode(message), type=self._kind)
        except msgspec.ValidationError as error:
            return str(error).partition(" - at ")[2].strip("`").removeprefix("$.") == self._field
        return False


def _at(message: Any, path: _Path) -> Any:
    for key in path:
        message = message[key]
    return message


def _replaced(message: Any, path: _Path, value: Any) -> Any:
    """The message with another value at `path`; nothing of the original is changed."""
    if not path:
        return value
    key: Any = path[0]
    copy = message.copy()
    copy[key] = _replaced(message[key], path[1:], value)
    return copy
