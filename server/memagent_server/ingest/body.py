"""Read the body of a request: decompress it within limits, then decode it into a message.

An error names the map entry at fault. msgspec reports `chunks[0].columns[...]`, and people need
`chunks[0].columns.loss`. Each `[...]` is found by bisection: the map is cut to half of its entries.
If the message still fails at the same place, the bad entry is in that half, otherwise in the other.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import zstandard
from flask import Request
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from memagent.errors import WireError
from memagent.wire.codec import JSON, MSGPACK, decode
from memagent_server.http.asgi import MAX_SENT_BYTES
from memagent_server.http.problems import Problem
from memagent_server.ingest.message_limits import check_values

MAX_SEARCHED_BYTES = 256 * 1024
"""The search would cost too much in larger bodies: they get msgspec's path."""

_UNKNOWN = "[...]"
_Path = tuple[str | int, ...]


def locate(body: bytes, kind: type[Any], content_type: str, field: str | None) -> str | None:
    """Return the exact path of the error at msgspec's path `field`, None if it can't be found."""
    if field is None or _UNKNOWN not in field or len(body) > MAX_SEARCHED_BYTES:
        return None
    try:
        return _Search(body, kind, content_type, field).run()
    except (msgspec.MsgspecError, TypeError, ValueError, LookupError, RecursionError):
        return None  # keys that aren't strings or UTF-8, or an unexpected path


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


MAX_BODY_BYTES = 32 * 2**20
MAX_RATIO = 200
"""Of unpacked to sent bytes. Samples of a run that stands still reach about 100."""
MIN_LIMIT_BYTES = 2**20
"""Any body may unpack to this."""
_MAX_WINDOW_BYTES = 32 * 2**20
_CHUNK_BYTES = 2**20

T = TypeVar("T")


def read_message(request: Request, kind: type[T]) -> T:
    """Return the message of a request. Raises Problem 400, 408, 413, 415 or 422."""
    content_type = request.mimetype or JSON
    if content_type == "application/x-msgpack":
        content_type = MSGPACK
    if content_type not in (JSON, MSGPACK):
        raise Problem(415, f"Unsupported content type {content_type}. Send {JSON} or {MSGPACK}.")
    encoding = request.headers.get("Content-Encoding", "")
    return read_packed(read_body(request), kind, content_type, encoding)


def read_packed(body: bytes, kind: type[T], content_type: str, encoding: str) -> T:
    """Return the message in a body as sent. Raises Problem 400, 413, 415 or 422."""
    body = decompress(body, encoding)
    check_values(body, content_type)
    return decode_message(body, kind, content_type)


def incomplete() -> Problem:
    """Return the problem of a body whose end is missing."""
    return Problem(408, "The body is incomplete. Send it again.")


def read_body(request: Request) -> bytes:
    """Return the body as sent. Raises Problem 413 for more than MAX_SENT_BYTES, 408 for an
    incomplete body.

    With 408 rather than 400, agents send the message again: it may be valid, and only its transfer
    failed.
    """
    too_large = Problem(
        413,
        f"The body is larger than {MAX_SENT_BYTES} bytes. Send smaller batches.",
        headers={"Connection": "close"},
    )
    # refused before it is read
    if request.content_length is not None and request.content_length > MAX_SENT_BYTES:
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        while part := request.stream.read(_CHUNK_BYTES):
            parts.append(part)
            size += len(part)
            if size > MAX_SENT_BYTES:
                raise too_large
    except RequestEntityTooLarge as error:
        raise too_large from error
    except (ClientDisconnected, OSError) as error:
        raise incomplete() from error
    if request.content_length is not None and size != request.content_length:
        raise incomplete()  # ASGI ends the body of a broken connection like any other
    return b"".join(parts)


def decompress(body: bytes, encoding: str) -> bytes:
    """Decompress within MAX_BODY_BYTES and MAX_RATIO. Raises Problem 400, 413 or 415."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    decompressor = _DECOMPRESSORS.get(encoding)
    if decompressor is None:
        raise Problem(415, f"Unsupported encoding {encoding!r}. Send gzip, deflate, zstd or none.")
    limit = min(MAX_BODY_BYTES, max(MIN_LIMIT_BYTES, MAX_RATIO * len(body)))
    try:
        plain = decompressor(body, limit)
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise Problem(400, f"The body is not valid {encoding}: {error}.") from error
    if len(plain) > limit:
        detail = f"{len(body)} bytes may unpack to {limit}. Send smaller batches."
        raise Problem(413, f"The body is too large uncompressed: {detail}")
    return plain


def decode_message(body: bytes, kind: type[T], content_type: str) -> T:
    """Decode a message of type `kind`.

    Raises Problem 400 for invalid syntax, 422 with the field for invalid content.
    """
    try:
        return decode(body, kind, content_type)
    except WireError as error:
        if isinstance(error.__cause__, msgspec.ValidationError):
            is_float = "got `float`" in str(error)
            # only after a failure, so that valid messages pay nothing
            if is_float and (retyped := _integral_floats_to_int(body, content_type)) is not None:
                return decode_message(retyped, kind, content_type)
            field = locate(body, kind, content_type, error.field) or error.field
            detail = str(error)
            if error.field and field:
                detail = detail.replace(error.field, field, 1)
            raise Problem(422, detail, field=field) from error
        if content_type == JSON and (converted := _python_json_to_msgpack(body)) is not None:
            return decode_message(converted, kind, MSGPACK)
        raise Problem(400, str(error)) from error


def _integral_floats_to_int(body: bytes, content_type: str) -> bytes | None:
    """Rewrite floats such as 3.0 as integers:

    JSON does not distinguish them. Return None if there are none.
    """
    is_json = content_type == JSON
    try:
        message = msgspec.json.decode(body) if is_json else msgspec.msgpack.decode(body)
        converted = _to_int(message)
        # repr, since 3 == 3.0
        if repr(converted) == repr(message):
            return None
        return json.dumps(converted).encode() if is_json else msgspec.msgpack.encode(converted)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return None


def _to_int(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_int(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_int(item) for item in value]
    is_integral = isinstance(value, float) and value.is_integer() and abs(value) < 2**63
    return int(value) if is_integral else value


def _python_json_to_msgpack(body: bytes) -> bytes | None:
    """Accept the NaN and Infinity of Python's json, so that the checks can name their field."""
    if b"NaN" not in body and b"Infinity" not in body:
        return None
    try:
        return msgspec.msgpack.encode(json.loads(body))
    except (ValueError, OverflowError, RecursionError):
        return None


def _inflate(body: bytes, limit: int, window_bits: int) -> bytes:
    inflater = zlib.decompressobj(window_bits)
    # one byte more than allowed shows that there is more
    plain = inflater.decompress(body, limit + 1)
    if len(plain) <= limit and not inflater.eof:
        raise EOFError("unexpected end")
    return plain


def _decompress_zstd(body: bytes, limit: int) -> bytes:
    # the window is memory that the sender chooses
    reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(
        body, read_across_frames=True
    )
    return bytes(reader.read(limit + 1))


_DECOMPRESSORS: dict[str, Callable[[bytes, int], bytes]] = {
    # 16 selects gzip's header
    "gzip": lambda body, limit: _inflate(body, limit, 16 + zlib.MAX_WBITS),
    "deflate": lambda body, limit: _inflate(body, limit, zlib.MAX_WBITS),
    "zstd": _decompress_zstd,
}
