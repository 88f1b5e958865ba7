"""Bytes of a message, and back: msgpack between programs, JSON for people and scripts."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from memagent.errors import WireError

REPLAYED_HEADER = "Memagent-Replayed"
"""HTTP header, `1` on everything that is uploaded after its process has ended: nobody should be alerted."""

MSGPACK = "application/msgpack"
JSON = "application/json"

T = TypeVar("T")

_pack = msgspec.msgpack.Encoder().encode


def encode(message: msgspec.Struct) -> bytes:
    """Msgpack bytes of a message; the same message always gives the same bytes, so a retry is byte-identical."""
    try:
        return _pack(message)
    except (
        UnicodeEncodeError
    ):  # a file's name that is no UTF-8, from the command line or in an error's text
        return _pack(_readable(msgspec.to_builtins(message)))


def decode(body: bytes, kind: type[T], content_type: str = MSGPACK) -> T:
    """A message of type `kind` from msgpack or JSON. Raises WireError that names the field at fault."""
    try:
        if content_type == JSON:
            return msgspec.json.decode(body, type=kind)
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        field = where.strip("`").removeprefix("$.") or None
        raise WireError(
            f"{field or 'the body'}: {what[0].lower()}{what[1:]}", field=field
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"the body is no valid {content_type}: {error}") from error


def _readable(value: Any) -> Any:
    """Plain values with `?` for what cannot be written as UTF-8."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_readable(name): _readable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(item) for item in value]
    return value


def to_builtins(message: Any) -> Any:
    """Plain dicts and lists, for answers and templates."""
    return msgspec.to_builtins(message)
