"""Batches over HTTP: what the whole server adds to the bare work, and how many it stores per
second.
"""

from __future__ import annotations

import socket
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import urllib3

from benchmarks.figures import Figure, quantile
from benchmarks.server import in_process
from benchmarks.server.load import TOKEN, Answers, Client, post_all
from benchmarks.server.real_server import Server, fresh_database, running, running_server
from benchmarks.server.workload import bodies, enter_runs

TITLE = "batches through the whole server"
CLIENTS = 16
PROCESSES = 2
"""Number of web processes; the other cores are for the clients."""
CPU_GOAL, SHARE_GOAL = 2.5, 0.15
LARGE_GOAL, SMALL_GOAL = 1_000_000, 100_000


def measure(quick: bool) -> list[Figure]:
    rounds, count = (1, 20) if quick else (5, 150)
    large, small = clients(CLIENTS, count, 500), clients(CLIENTS, count * 2, 16)
    cpu_s, raw_s, shares, large_per_s, small_per_s = [], [], [], [], []
    slowest: list[float] = []
    for _ in range(rounds):
        raw_s.append(in_process.raw_s(5 if quick else 50))
        with empty_server() as server:
            empty = post_all(server.url, large)
        with fresh_server(large) as server:
            before = server.cpu_s()
            answers = checked(post_all(server.url, large))
            cpu_s.append((server.cpu_s() - before) / len(answers.seconds))
            shares.append(answers.per_s / empty.per_s)
            large_per_s.append(answers.per_s * 500)
            slowest.append(quantile(answers.seconds, 0.99))
        with fresh_server(small) as server:
            small_per_s.append(checked(post_all(server.url, small)).per_s * 16)
    middle = statistics.median
    return [
        Figure("raw, in process", "us", 1e6 * middle(raw_s)),
        Figure("processor time of the server, a batch of 500", "us", 1e6 * middle(cpu_s)),
        Figure(
            "the same by raw",
            "x",
            middle(c / r for c, r in zip(cpu_s, raw_s, strict=True)),
            goal=CPU_GOAL,
        ),
        Figure(
            "requests by those of a server that answers 204",
            "x",
            middle(shares),
            goal=SHARE_GOAL,
            more_is_better=True,
        ),
        Figure(
            "samples a second, 500 a batch",
            "/s",
            middle(large_per_s),
            goal=LARGE_GOAL,
            more_is_better=True,
        ),
        Figure(
            "samples a second, 16 a batch",
            "/s",
            middle(small_per_s),
            goal=SMALL_GOAL,
            more_is_better=True,
        ),
        Figure(
            "p99 of a saturated server, 500 a batch",
            "ms",
            1e3 * middle(slowest),
            note=f"{CLIENTS} clients at once",
        ),
    ]


def clients(number: int, count: int, rows: int, *, every_s: float = 0.0) -> list[Client]:
    """Return clients with a run each that send `count` batches of `rows` equal samples."""
    same = bodies(count, rows)
    return [
        Client(f"/api/v1/runs/run-{index}/batches", same, every_s, every_s * index / number)
        for index in range(number)
    ]


@contextmanager
def fresh_server(those: Sequence[Client]) -> Iterator[Server]:
    """Start memagent's server over a new database that knows the clients' runs, and warm it up."""
    with fresh_database() as database:
        enter_runs(
            database, ["warm", *(client.path.split("/")[4] for client in those)], time.time()
        )
        database.close()
        environ = {"MEMAGENT_ADMIN_TOKEN": TOKEN}
        with running_server(database.url, "--workers", str(PROCESSES), environ=environ) as server:
            warm = [
                Client("/api/v1/runs/warm/batches", bodies(5, 16)) for _ in range(4 * PROCESSES)
            ]
            post_all(server.url, warm)
            yield server


@contextmanager
def empty_server() -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.server.empty", str(port), str(PROCESSES)]
    with running(command, {}) as server:
        _wait_for(server.url)
        yield server


def checked(answers: Answers) -> Answers:
    """Raise RuntimeError if the server refused a request: the figures would be meaningless."""
    if answers.refused:
        raise RuntimeError(f"the server refused {answers.refused} of {len(answers.seconds)}")
    return answers


def _wait_for(url: str) -> None:
    until = time.monotonic() + 30.0
    with urllib3.PoolManager(retries=False) as pool:
        while True:
            try:
                pool.request("POST", f"{url}/", body=b"", timeout=2.0)
                return
            except urllib3.exceptions.HTTPError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
