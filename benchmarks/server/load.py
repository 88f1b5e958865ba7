"""Client processes that post prepared bodies, as fast as the server answers or at a given pace.

Each client is one agent with one connection and one request at a time. Requests are bytes on a
socket, and only the needed part of a response is parsed, so that the client's own cost is not
measured.
"""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

TOKEN = "an-admin-token-for-clients"
"""Agents send a token. Open servers ignore it."""
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Client:
    """Requests of one client: post `bodies` in turn to `path`, one per `every_s` (0: at once), the
    first after `delay_s`. If `catches_up`, a late response doesn't move the times of later requests.
    """

    path: str
    bodies: Sequence[bytes]
    every_s: float = 0.0
    delay_s: float = 0.0
    headers: Sequence[str] = ("Content-Type: application/msgpack", f"Authorization: Bearer {TOKEN}")
    catches_up: bool = True


@dataclass
class Answers:
    """Seconds until each response, counted from the time the request was due, over `wall_s`
    seconds. `refused` counts responses other than 2xx.
    """

    wall_s: float
    seconds: list[float] = field(default_factory=list)
    refused: int = 0

    @property
    def per_s(self) -> float:
        return len(self.seconds) / self.wall_s


def post_all(url: str, clients: Sequence[Client], *, processes: int = 2) -> Answers:
    """Run all clients to their end and return their results. Raises OSError if a connection breaks."""
    context = multiprocessing.get_context("spawn")
    ends, workers = [], []
    for number in range(min(processes, len(clients))):
        ours, theirs = context.Pipe()
        worker = context.Process(
            target=_work, args=(url, clients[number::processes], theirs), daemon=True
        )
        worker.start()
        theirs.close()
        ends.append(ours)
        workers.append(worker)
    for end in ends:
        end.recv()  # ready
    began = time.perf_counter()
    for end in ends:
        end.send("go")
    results = [end.recv() for end in ends]
    answers = Answers(time.perf_counter() - began)
    for worker in workers:
        worker.join()
    for one in results:
        if isinstance(one, OSError):
            raise one
        answers.seconds += one[0]
        answers.refused += one[1]
    return answers


def _work(url: str, clients: Sequence[Client], end: Connection) -> None:
    parts = urlsplit(url)
    requests = [
        [_request(client, body, parts.netloc) for body in client.bodies] for client in clients
    ]
    end.send("ready")
    end.recv()
    with ThreadPoolExecutor(len(clients)) as pool:
        address = (parts.hostname or "", parts.port or 80)
        work = [pool.submit(_send, *of, address) for of in zip(clients, requests, strict=True)]
        try:
            results = [one.result() for one in work]
        except OSError as error:
            end.send(error)
            return
    end.send(
        ([one for seconds, _ in results for one in seconds], sum(refused for _, refused in results))
    )


def _send(
    client: Client, requests: Sequence[bytes], address: tuple[str, int]
) -> tuple[list[float], int]:
    connection = socket.create_connection(address, timeout=_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    seconds: list[float] = []
    refused = 0
    due = time.perf_counter() + client.delay_s
    for request in requests:
        now = time.perf_counter()
        if client.every_s and now < due:
            time.sleep(due - now)
        elif not client.every_s or not client.catches_up:
            due = now
        connection.sendall(request)
        refused += not _is_good(connection)
        seconds.append(time.perf_counter() - due)
        due += client.every_s
    connection.close()
    return seconds, refused


def _request(client: Client, body: bytes, host: str) -> bytes:
    lines = (
        f"POST {client.path} HTTP/1.1",
        f"Host: {host}",
        f"Content-Length: {len(body)}",
        *client.headers,
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _is_good(connection: socket.socket) -> bool:
    """Read one response. Return True for a 2xx status."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(65536)
        if not part:
            raise ConnectionError("the server closed the connection")
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    length = next(
        (
            int(line[15:])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        ),
        0,
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head[9:10] == b"2"
