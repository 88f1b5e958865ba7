"""Serve the WSGI application under ASGI, so that no slow client holds a thread.

1. The event loop reads a body within BODY_TIMEOUT_S, and only then takes a thread. After the
   deadline the application gets a body that can't be read, and answers 408.
2. A body of more than SMALL_BODY_BYTES is read only if `may_send` allows it by the head alone. A
   refusal is the application's, which needs no body for it.
3. A body that declares more than MAX_SENT_BYTES isn't read. All bodies together may take
   MAX_BUFFERED_BYTES; above it, those that exceed SMALL_BODY_BYTES aren't read on. Nor is one whose
   parts are tiny: each takes the event loop as long as a kilobyte.
4. The event loop sends the response. A thread of its own reads the pieces of downloads, each when
   the last one is sent. It waits, at most MAX_PAUSE_S, while requests are being answered, and rests
   as long after a piece during which some were. A client that takes no piece within SEND_TIMEOUT_S
   loses its response.
5. After a body that wasn't read, the connection closes.
"""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

MAX_SENT_BYTES = 8 * 2**20
MAX_BUFFERED_BYTES = 256 * 2**20
SMALL_BODY_BYTES = 64 * 1024
MAX_SMALL_PARTS = 512
MIN_PART_BYTES = 512
"""Limit for the mean part of a body beyond the first MAX_SMALL_PARTS: packets are larger."""
BODY_TIMEOUT_S = 30.0
SEND_TIMEOUT_S = 30.0
MAX_PAUSE_S = 0.02
"""Longer than most requests take. A server that always has some still sends downloads."""
_POLL_S = 0.001
_PIECE_BYTES = 64 * 1024
_STATUSES_WITHOUT_BODY = (204, 304)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Background = Callable[["AsgiApp"], Awaitable[None]]
MaySend = Callable[[dict[str, Any]], bool]
T = TypeVar("T")


class AsgiApp:
    """An ASGI application that runs a WSGI application on `threads` threads.

    `may_send` is called on a thread, with the environment of a request whose body is large.
    `background` runs on the event loop for as long as the server does.
    """

    def __init__(
        self, app: WSGIApplication, may_send: MaySend, threads: int, background: Background
    ) -> None:
        self._app = app
        self._may_send = may_send
        self._threads = _Threads(threads, "memagent-request")
        self._streams = _Threads(1, "memagent-stream")
        self.completed_calls = 0
        self._pending_calls = 0
        self._background = background
        self._buffered_bytes = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        body = _Body(_declared_size(scope))
        try:
            response = await self._respond(scope, receive, body)
        finally:
            self._buffered_bytes -= body.size
        if not body.is_whole:
            response.headers.append((b"connection", b"close"))
        await self._send(response, send)

    async def run(self, function: Callable[[], None]) -> None:
        """Call a function on one of the threads."""
        self._pending_calls += 1
        try:
            await self._threads.call(function)
        finally:
            self._pending_calls -= 1
        self.completed_calls += 1

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        task = asyncio.ensure_future(self._background(self))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        task.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    async def _respond(self, scope: Message, receive: Receive, body: _Body) -> _Response:
        """Return a response that has started."""
        environ = environ_of(scope)
        await self._receive(receive, body, SMALL_BODY_BYTES)
        if body.is_pending and await self._threads.call(partial(self._may_send, environ)):
            await self._receive(receive, body, MAX_SENT_BYTES)
        environ["wsgi.input"] = body.stream()
        response = _Response(self._app, environ)
        await self.run(partial(response.run, _Response.start))
        return response

    async def _receive(self, receive: Receive, body: _Body, limit: int) -> None:
        """Read up to a little more than `limit` bytes, and none of a body that declares more."""
        try:
            with _Deadline(BODY_TIMEOUT_S):
                while body.is_missing and body.least_size <= self._room(limit):
                    message = await receive()
                    part = message.get("body", b"")
                    body.add(part, is_last=not message.get("more_body"))
                    self._buffered_bytes += len(part)
        except asyncio.TimeoutError:
            body.is_late = True

    def _room(self, limit: int) -> int:
        is_crowded = self._buffered_bytes > MAX_BUFFERED_BYTES
        return SMALL_BODY_BYTES if is_crowded else limit

    async def _send(self, response: _Response, send: Send) -> None:
        head = {"status": response.status, "headers": response.headers}
        if response.is_last:
            await send({"type": "http.response.start", **head})
            await self._send_piece(response, send)
            return
        try:
            await send({"type": "http.response.start", **head})
            while not response.is_last:
                await self._streams.call(partial(self._read_piece, response))
                await self._send_piece(response, send)
        finally:
            await self._streams.call(partial(response.run, _Response.close))

    def _read_piece(self, response: _Response) -> None:
        self._pause()
        began_at, completed = time.monotonic(), self.completed_calls
        response.run(_Response.read_piece)
        if self.completed_calls != completed:
            time.sleep(time.monotonic() - began_at)

    def _pause(self) -> None:
        until = time.monotonic() + MAX_PAUSE_S
        while self._pending_calls and time.monotonic() < until:
            time.sleep(_POLL_S)

    async def _send_piece(self, response: _Response, send: Send) -> None:
        message = {"body": response.piece, "more_body": not response.is_last}
        with _Deadline(SEND_TIMEOUT_S):
            await send({"type": "http.response.body", **message})


class _Body:
    """What has arrived of a request's body. `declared_size` is -1 for a body of unknown length."""

    def __init__(self, declared_size: int) -> None:
        self.declared_size = declared_size
        self.size = 0
        # granian reports the end of a body by a message of its own, which costs a turn of the loop
        self.is_whole = declared_size == 0
        self.is_late = False
        self._parts: list[bytes] = []

    @property
    def least_size(self) -> int:
        return max(self.size, self.declared_size)

    @property
    def is_missing(self) -> bool:
        """Check for a body whose rest is worth reading."""
        is_fragmented = len(self._parts) > MAX_SMALL_PARTS + self.size // MIN_PART_BYTES
        return not (self.is_whole or self.is_late or is_fragmented)

    @property
    def is_pending(self) -> bool:
        """Check for a large body whose rest may arrive in time."""
        return self.is_missing and self.least_size > SMALL_BODY_BYTES

    def add(self, part: bytes, *, is_last: bool) -> None:
        self._parts.append(part)
        self.size += len(part)
        self.is_whole = is_last or self.size == self.declared_size

    def stream(self) -> io.RawIOBase | io.BytesIO:
        """Return `wsgi.input`."""
        if self.is_whole or self.size > MAX_SENT_BYTES:
            return io.BytesIO(b"".join(self._parts))
        return _Unreadable()


class _Unreadable(io.RawIOBase):
    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise TimeoutError("the body has not arrived in time")


class _Response:
    """A response of the WSGI application. Its methods are called on threads, one at a time."""

    def __init__(self, app: WSGIApplication, environ: WSGIEnvironment) -> None:
        self._app = app
        self._environ = environ
        self._context = copy_context()
        self._chunks: Iterable[bytes] = ()
        self._rest: Iterator[bytes] = iter(())
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []
        self.piece = b""
        self.is_last = False

    def run(self, step: Callable[[_Response], None]) -> None:
        """Run a step of the response in its context."""
        self._context.run(step, self)

    def start(self) -> None:
        """Run the application, and make all of a response whose length is known."""
        self._chunks = self._app(self._environ, self._start_response)
        self._rest = iter(self._chunks)
        has_length = any(name == b"content-length" for name, _ in self.headers)
        if has_length or self.status in _STATUSES_WITHOUT_BODY:
            self.read_piece(sys.maxsize)
            self.close()

    def _start_response(
        self, status: str, headers: list[tuple[str, str]], _error: Any = None, /
    ) -> Callable[[bytes], object]:
        self.status = int(status[:3])
        self.headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
        return _refuse_write

    def read_piece(self, size: int = _PIECE_BYTES) -> None:
        """Make the next piece."""
        parts: list[bytes] = []
        while size > 0 and not self.is_last:
            part = next(self._rest, None)
            self.is_last = part is None
            parts.append(part or b"")
            size -= len(parts[-1])
        self.piece = b"".join(parts)

    def close(self) -> None:
        """End a response that isn't sent to its end."""
        getattr(self._chunks, "close", lambda: None)()


def _declared_size(scope: Message) -> int:
    headers = dict(scope["headers"])
    return int(headers.get(b"content-length", -1 if b"transfer-encoding" in headers else 0))


def environ_of(scope: Message) -> WSGIEnvironment:
    """Return the WSGI environment of a request, with an empty body.

    A header whose name contains `_` is dropped: it would pass for the one with `-`.
    """
    path = unquote_to_bytes(scope.get("raw_path") or scope["path"]).decode("latin-1")
    environ: WSGIEnvironment = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "SERVER_NAME": scope["server"][0],
        "SERVER_PORT": str(scope["server"][1]),
        "REMOTE_ADDR": scope["client"][0],
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope["scheme"],
        "wsgi.input": io.BytesIO(),
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for raw_name, raw_value in scope["headers"]:
        if b"_" in raw_name:
            continue
        name, value = raw_name.decode().upper().replace("-", "_"), raw_value.decode("latin-1")
        key = name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}"
        separator = "; " if name == "COOKIE" else ","
        environ[key] = f"{environ[key]}{separator}{value}" if key in environ else value
    return environ


class _Deadline:
    """Raises asyncio.TimeoutError if the task is still inside after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._has_passed = False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        if self._has_passed and kind is asyncio.CancelledError:
            raise asyncio.TimeoutError from None

    def _end(self) -> None:
        self._has_passed = True
        if self._task is not None:
            self._task.cancel()


class _Threads:
    """Threads that make calls for the event loop.

    `run_in_executor` would make two futures for each call, one of them with a lock and a
    condition. At the rate of a fleet's batches that is a fifth of a request.
    """

    def __init__(self, count: int, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = SimpleQueue()
        for index in range(count):
            threading.Thread(target=self._work, name=f"{name}_{index}", daemon=True).start()

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Call a function on a thread; await the result."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((function, future))
        return future

    def _work(self) -> None:
        while True:
            function, future = self._calls.get()
            result, error = None, None
            try:
                result = function()
            except BaseException as raised:  # noqa: BLE001 - the request that awaits it gets it
                error = raised
            with suppress(RuntimeError):  # the loop has closed
                future.get_loop().call_soon_threadsafe(_finish, future, result, error)
            del function, future, result, error


def _finish(future: asyncio.Future[T], result: T, error: BaseException | None) -> None:
    if error is not None and not future.cancelled():
        future.set_exception(error)
    elif not future.cancelled():
        future.set_result(result)


def _refuse_write(data: bytes) -> object:
    raise NotImplementedError("no view of the application uses WSGI's write()")
