"""TCP proxy with faults: reset connections after random bytes, drop responses, truncate bodies,
fall silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from random import Random

Target = tuple[str, int] | Path
"""Target of connections: host and port, or a Unix socket."""
_AT_ONCE = 65536


@dataclass(frozen=True)
class Weather:
    """Faults of connections. `most_bytes`: each direction passes a random number of bytes up to
    this, and is then reset or, as often, closed (a half body, whose response still gets
    through). `is_silent`: nothing passes, and no error is sent.
    """

    most_bytes: int | None = None
    is_silent: bool = False
    refuses: bool = False


FAIR = Weather()


class _Cut(Exception):  # noqa: N818 - it is what should happen
    pass


class Proxy:
    """Forward connections from `address` to `target` on a thread, until `close`."""

    def __init__(self, target: Target, rng: Random) -> None:
        self._target, self._rng, self._weather = target, rng, FAIR
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._thread.start()
        self._server = self._call(lambda: asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.cuts = 0

    def set(self, weather: Weather) -> None:
        """Change the faults; reset open connections."""
        self._weather = weather
        self.cut()

    def aim(self, target: Target) -> None:
        """Send new connections to another target; reset open ones."""
        self._target = target
        self.cut()

    def cut(self) -> None:
        """Reset all open connections."""
        self._call(self._cut_all)

    def close(self) -> None:
        self._call(self._refuse_all)
        self.cut()
        self._call(self._rest)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work):
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(10.0)

    # -- on the proxy's thread -------------------------------------------------------------------------------------------------

    async def _cut_all(self) -> None:
        for writer in list(self._open):
            _reset(writer)

    async def _refuse_all(self) -> None:
        self._server.close()  # here, since asyncio's objects are not for other threads

    async def _rest(self) -> None:
        """Wait for the end of every connection's task."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        weather, far = self._weather, None
        try:
            if weather.refuses:
                return
            far_reader, far = await self._connect()
            self._open.add(far)
            await asyncio.gather(
                self._pump(reader, far, weather), self._pump(far_reader, writer, weather)
            )
            for end in (writer, far):
                end.close()
                await end.wait_closed()
        except (OSError, _Cut, asyncio.CancelledError):
            pass  # cut, by one end or by us
        finally:
            for end in filter(None, (writer, far)):
                _reset(end)
                self._open.discard(end)

    async def _connect(self):
        if isinstance(self._target, Path):
            return await asyncio.open_unix_connection(str(self._target))
        return await asyncio.open_connection(*self._target)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, weather: Weather
    ) -> None:
        remaining = None if weather.most_bytes is None else self._rng.randrange(weather.most_bytes)
        while data := await source.read(_AT_ONCE):
            if weather.is_silent:
                continue
            if remaining is not None and len(data) > remaining:
                await self._break_off(sink, data[:remaining])
                remaining, weather = None, Weather(is_silent=True)
                continue
            remaining = None if remaining is None else remaining - len(data)
            sink.write(data)
            await sink.drain()
        _end(sink)

    async def _break_off(self, sink: asyncio.StreamWriter, rest: bytes) -> None:
        self.cuts += 1
        sink.write(rest)
        await sink.drain()
        if self._rng.random() < 0.5:
            raise _Cut
        _end(sink)


def _end(sink: asyncio.StreamWriter) -> None:
    """Close this direction."""
    with contextlib.suppress(OSError, RuntimeError):
        sink.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Send RST instead of FIN if the peer is still connected."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.family == socket.AF_INET:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
