"""HTTP with bounds, for agent and server: connections that obey a `Deadline`, and bodies of bounded
size, before and after decompression.

Importing this module imports urllib3, which takes 40 ms and more.
"""

from __future__ import annotations

import socket
import zlib
from typing import Any

import urllib3
import urllib3.connection

from memagent.wire.deadline import watch
from memagent.wire.local_tokens import check_peer

_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
"""zlib recognizes either by its header."""


class TooLargeError(Exception):
    """A body exceeds its bound."""


class _HttpConnection(urllib3.connection.HTTPConnection):
    def _new_conn(self) -> socket.socket:
        connection = super()._new_conn()
        watch(connection)
        return connection

    def request(self, *arguments: Any, **options: Any) -> Any:
        _watch_kept(self)
        return super().request(*arguments, **options)


class _OwnUserConnection(_HttpConnection):
    def _new_conn(self) -> socket.socket:
        connection = super()._new_conn()
        try:
            check_peer(connection)
        except BaseException:
            connection.close()
            raise
        return connection


class _HttpsConnection(urllib3.connection.HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        connection = super()._new_conn()
        watch(connection)
        return connection

    def request(self, *arguments: Any, **options: Any) -> Any:
        _watch_kept(self)
        return super().request(*arguments, **options)


class HttpPool(urllib3.HTTPConnectionPool):
    """Connections to one host that obey the deadline of the thread that uses them."""

    ConnectionCls = _HttpConnection


class OwnUserPool(HttpPool):
    """Connections to a process of the own user on this machine. Others raise DeliveryError."""

    ConnectionCls = _OwnUserConnection


class HttpsPool(urllib3.HTTPSConnectionPool):
    """The same under TLS."""

    ConnectionCls = _HttpsConnection


def pool_manager(
    proxy: str | None = None, *, http_pool: type[HttpPool] = HttpPool, **options: Any
) -> urllib3.PoolManager:
    """Return a pool manager whose connections obey deadlines."""
    # urllib3-future, by which some packages replace urllib3, would start a thread for each host
    if "key_background_watch_delay" in urllib3.poolmanager.PoolKey._fields:
        options["background_watch_delay"] = None
    manager = (
        urllib3.PoolManager(**options) if proxy is None else urllib3.ProxyManager(proxy, **options)
    )
    manager.pool_classes_by_scheme = {"http": http_pool, "https": HttpsPool}
    return manager


def read_body(response: Any, max_bytes: int) -> bytes:
    """Return the body of a response that isn't loaded yet. Raises TooLargeError."""
    body = read_start(response, max_bytes + 1)
    if len(body) > max_bytes:
        raise TooLargeError
    return body


def read_start(response: Any, max_bytes: int) -> bytes:
    """Return the start of a body, decompressed if it is gzip or zlib.

    Read at most `max_bytes`, and unpack them to at most as many.
    """
    body: bytes = response.read(max_bytes, decode_content=False)
    if response.headers.get("Content-Encoding", "").lower() not in ("gzip", "x-gzip", "deflate"):
        return body
    try:
        return zlib.decompressobj(_GZIP_OR_ZLIB).decompress(body, max_bytes)
    except zlib.error as error:
        raise urllib3.exceptions.DecodeError(f"invalid compressed body: {error}") from error


def _watch_kept(connection: Any) -> None:
    """Apply the deadline to a connection that an earlier request has opened."""
    if connection.sock is not None:
        watch(connection.sock)
