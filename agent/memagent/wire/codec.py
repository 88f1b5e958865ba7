"""Encode and decode messages: msgpack between programs, JSON for people and scripts."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from memagent.errors import WireError

REPLAYED_HEADER = "Memagent-Replayed"
"""HTTP header: `1` if the process had ended before the upload, so that no one is alerted."""

MSGPACK = "application/msgpack"
JSON = "application/json"

T = TypeVar("T")

_pack = msgspec.msgpack.Encoder().encode


def encode(message: msgspec.Struct) -> bytes:
    """Return a message as msgpack. Equal messages give equal bytes, so retries are identical."""
    try:
        return _pack(message)
    except UnicodeEncodeError:  # a file name in an error's text that isn't valid UTF-8
        return _pack(_replace_invalid(msgspec.to_builtins(message)))


def decode(body: bytes, kind: type[T], content_type: str = MSGPACK) -> T:
    """Return a message of type `kind`. Raises WireError that names the invalid field."""
    try:
        if content_type == JSON:
            return msgspec.json.decode(body, type=kind)
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        field = path.strip("`").removeprefix("$.") or None
        message = f"{field or 'the body'}: {reason[0].lower()}{reason[1:]}"
        raise WireError(message, field=field) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"the body isn't valid {content_type}: {error}") from error


def prepare(*kinds: type) -> None:
    """Let msgspec look at the fields of types, before threads decode them.

    msgspec 0.22 does that when it first decodes a type, and crashes the process if another thread
    decodes the type meanwhile.
    """
    for kind in kinds:
        msgspec.msgpack.Decoder(kind)


def _replace_invalid(value: Any) -> Any:
    """Return plain values, with `?` for characters that can't be encoded."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_replace_invalid(name): _replace_invalid(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_invalid(item) for item in value]
    return value


def to_builtins(message: Any) -> Any:
    """Return plain dicts and lists, for responses and templates."""
    return msgspec.to_builtins(message)
