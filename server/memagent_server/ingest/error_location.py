"""Find the map entry at fault: msgspec reports `chunks[0].columns[...]`, people need
`chunks[0].columns.loss`.

Each `[...]` is found by bisection: the map is cut to half of its entries. If the message still
fails at the same place, the bad entry is in that half, otherwise in the other.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from memagent.wire.codec import JSON

MAX_SEARCHED_BYTES = 4 * 2**20
"""The search would cost too much in larger bodies: they get msgspec's path."""

_UNKNOWN = "[...]"
_Path = tuple[str | int, ...]


def locate(body: bytes, kind: type[Any], content_type: str, field: str | None) -> str | None:
    """Return the exact path of the error at msgspec's path `field`, None if it can't be found."""
    if field is None or _UNKNOWN not in field or len(body) > MAX_SEARCHED_BYTES:
        return None
    try:
        return _Search(body, kind, content_type, field).run()
    except (msgspec.MsgspecError, TypeError, LookupError, RecursionError):
        return None  # keys that aren't strings, or an unexpected path


class _Search:
    def __init__(self, body: bytes, kind: type[Any], content_type: str, field: str) -> None:
        self._kind = kind
        self._field = field
        self._wire = msgspec.json if content_type == JSON else msgspec.msgpack
        self._message: Any = self._wire.decode(body)

    def run(self) -> str:
        path: _Path = ()
        text = ""
        for token in re.findall(r"\[\.\.\.\]|\[\d+\]|[^.\[\]]+", self._field):
            if token == _UNKNOWN:
                key = self._find_bad_key(path, _get(self._message, path))
                path, text = (*path, key), f"{text}.{key}"
            elif token.startswith("["):
                path, text = (*path, int(token[1:-1])), f"{text}{token}"
            else:
                path, text = (*path, token), f"{text}.{token}"
        return text.removeprefix(".")

    def _find_bad_key(self, path: _Path, entries: dict[str, Any]) -> str:
        keys = list(entries)
        while len(keys) > 1:
            half = len(keys) // 2
            first_half = {key: entries[key] for key in keys[:half]}
            fails = self._fails(_replace(self._message, path, first_half))
            keys = keys[:half] if fails else keys[half:]
        return keys[0]

    def _fails(self, message: Any) -> bool:
        """Check whether the message still fails at the path that is searched."""
        try:
            self._wire.decode(self._wire.encode(message), type=self._kind)
        except msgspec.ValidationError as error:
            return str(error).partition(" - at ")[2].strip("`").removeprefix("$.") == self._field
        return False


def _get(message: Any, path: _Path) -> Any:
    for key in path:
        message = message[key]
    return message


def _replace(message: Any, path: _Path, value: Any) -> Any:
    """Return a copy of the message with another value at `path`."""
    if not path:
        return value
    key: Any = path[0]
    copy = message.copy()
    copy[key] = _replace(message[key], path[1:], value)
    return copy
