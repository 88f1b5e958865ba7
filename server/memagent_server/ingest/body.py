"""The body of a request: read and unpacked within bounds, then decoded into a message."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import zstandard
from flask import Request
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from memagent.errors import WireError
from memagent.wire.codec import JSON, MSGPACK, decode
from memagent_server.http.problems import Problem
from memagent_server.ingest.error_location import locate

MAX_SENT_BYTES = 8 * 2**20
MAX_BODY_BYTES = 64 * 2**20
_MAX_WINDOW_BYTES = 32 * 2**20
_READ_AT_ONCE = 2**20

T = TypeVar("T")


def read_message(request: Request, kind: type[T]) -> T:
    """The message that a request carries. Raises Problem 400, 408, 413, 415 or 422."""
    content_type = request.mimetype or JSON
    if content_type == "application/x-msgpack":
        content_type = MSGPACK
    if content_type not in (JSON, MSGPACK):
        raise Problem(415, f"{content_type} is not understood: send {JSON} or {MSGPACK}")
    return decode_message(
        unpack_body(read_body(request), request.headers.get("Content-Encoding", "")),
        kind,
        content_type,
    )


def read_body(request: Request) -> bytes:
    """The body as it was sent. Raises Problem 413 for more than MAX_SENT_BYTES, 408 for one that breaks off.

    408, not 400: the message may be fine and its way was not, so agents send it again instead of leaving it behind.
    """
    too_large = Problem(
        413,
        f"the body is larger than {MAX_SENT_BYTES} bytes as sent: send smaller batches",
        headers={"Connection": "close"},
    )
    if request.content_length is not None and request.content_length > MAX_SENT_BYTES:
        raise too_large
    broken_off = Problem(408, "the body broke off before its end: send it again")
    parts: list[bytes] = []
    size = 0
    try:
        while part := request.stream.read(_READ_AT_ONCE):
            parts.append(part)
            size += len(part)
            if size > MAX_SENT_BYTES:
                raise too_large
    except RequestEntityTooLarge as error:
        raise too_large from error
    except (ClientDisconnected, OSError) as error:
        raise broken_off from error
    if request.content_length is not None and size != request.content_length:
        raise broken_off  # granian hands over what came before the connection broke as if it were all
    return b"".join(parts)


def unpack_body(body: bytes, encoding: str) -> bytes:
    """The body without its compression, never more than MAX_BODY_BYTES of it. Raises Problem 400, 413 or 415."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    unpack = _UNPACKERS.get(encoding)
    if unpack is None:
        raise Problem(
            415, f"the encoding {encoding!r} is not understood: send gzip, deflate, zstd or none"
        )
    try:
        plain = unpack(body)
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise Problem(400, f"the body is no valid {encoding}: {error}") from error
    if len(plain) > MAX_BODY_BYTES:
        raise Problem(
            413, f"the body unpacks to more than {MAX_BODY_BYTES} bytes: send smaller batches"
        )
    return plain


def decode_message(body: bytes, kind: type[T], content_type: str) -> T:
    """A message of type `kind`. Raises Problem 400 for broken syntax, 422 that names the field for wrong content."""
    try:
        return decode(body, kind, content_type)
    except WireError as error:
        if isinstance(error.__cause__, msgspec.ValidationError):
            if (
                "got `float`" in str(error)
                and (plain := _with_whole_numbers(body, content_type)) is not None
            ):
                return decode_message(plain, kind, content_type)
            field = locate(body, kind, content_type, error.field) or error.field
            detail = (
                str(error).replace(error.field, field, 1) if error.field and field else str(error)
            )
            raise Problem(422, detail, field=field) from error
        if content_type == JSON and (plain := _with_numbers_of_python(body)) is not None:
            return decode_message(plain, kind, MSGPACK)
        raise Problem(400, str(error)) from error


def _with_whole_numbers(body: bytes, content_type: str) -> bytes | None:
    """To JSON 3.0 and 3 are one number, and some serializers write whole ones so; None where there are none such."""
    is_json = content_type == JSON
    try:
        message = msgspec.json.decode(body) if is_json else msgspec.msgpack.decode(body)
        plain = _whole(message)
        if repr(plain) == repr(message):
            return None
        return json.dumps(plain).encode() if is_json else msgspec.msgpack.encode(plain)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return None


def _whole(value: Any) -> Any:
    """The same with integers for floats that are whole."""
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return (
        int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**63
        else value
    )


def _with_numbers_of_python(body: bytes) -> bytes | None:
    """Python's json writes NaN and Infinity, which are no JSON: read them all the same, so that the checks can name their place."""
    if b"NaN" not in body and b"Infinity" not in body:
        return None
    try:
        return msgspec.msgpack.encode(json.loads(body))
    except (ValueError, OverflowError, RecursionError):
        return None


def _inflate(body: bytes, window_bits: int) -> bytes:
    inflater = zlib.decompressobj(window_bits)
    plain = inflater.decompress(body, MAX_BODY_BYTES + 1)
    if len(plain) <= MAX_BODY_BYTES and not inflater.eof:
        raise EOFError("it breaks off before its end")
    return plain


def _unpack_zstd(body: bytes) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(
        body, read_across_frames=True
    )
    return bytes(reader.read(MAX_BODY_BYTES + 1))


_UNPACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda body: _inflate(body, 16 + zlib.MAX_WBITS),
    "deflate": lambda body: _inflate(body, zlib.MAX_WBITS),
    "zstd": _unpack_zstd,
}
