"""Batches while other clients download exports of a long run, from one web process."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event

import urllib3

from benchmarks.figures import Figure, quantile
from benchmarks.server.load import Client, post_all
from benchmarks.server.over_http import checked, clients
from benchmarks.server.real_server import fresh_database, running_server
from benchmarks.server.workload import batch, enter_runs
from memagent_server.store.engine import Database
from memagent_server.store.samples import add_batch

TITLE = "batches of 16 samples while ten exports are read"
READERS, PER_S, CLIENTS = 10, 40.0, 10
LONG_BATCHES, LONG_BATCHES_QUICK = 400, 20
GOAL = 2.0


def measure(quick: bool) -> list[Figure]:
    """Alternate between no reader and ten, with the same batches."""
    rounds, count = (1, 10) if quick else (5, 60)
    paced = clients(CLIENTS, count, 16, every_s=CLIENTS / PER_S)
    phases = [(f"{kind}-{number}", kind) for number in range(rounds) for kind in ("alone", "read")]
    seconds: dict[str, list[float]] = {"alone": [], "read": []}
    read_bytes = 0
    with fresh_database() as database:
        names = [f"{phase}-{index}" for phase, _ in phases for index in range(CLIENTS)]
        enter_runs(database, ["long", *names], time.time())
        _add_long_run(database, LONG_BATCHES_QUICK if quick else LONG_BATCHES)
        database.close()
        with running_server(database.url) as server:
            for phase, kind in phases:
                with _readers(server.url, READERS if kind == "read" else 0) as received:
                    seconds[kind] += checked(post_all(server.url, _renamed(paced, phase))).seconds
                    read_bytes += received()
    alone, read = (quantile(seconds[kind], 0.99) for kind in ("alone", "read"))
    note = f"{read_bytes >> 20} MiB read"
    return [
        Figure("without exports", "ms", 1e3 * quantile(seconds["alone"], 0.5), p99=1e3 * alone),
        Figure(
            "with exports", "ms", 1e3 * quantile(seconds["read"], 0.5), p99=1e3 * read, note=note
        ),
        Figure("p99 with exports by p99 without", "x", read / alone, goal=GOAL),
    ]


def _renamed(paced: list[Client], phase: str) -> list[Client]:
    return [
        replace(client, path=f"/api/v1/runs/{phase}-{index}/batches")
        for index, client in enumerate(paced)
    ]


def _add_long_run(database: Database, batches: int) -> None:
    for seq in range(batches):
        with database.write() as session:
            add_batch(session, "long", batch(seq, 500), time.time())


@contextmanager
def _readers(url: str, count: int) -> Iterator[Callable[[], int]]:
    """Read exports again and again; yield what returns the bytes received."""
    context = multiprocessing.get_context("spawn")
    stop, received = context.Event(), context.Value("q", 0)
    reader = context.Process(target=_read_all, args=(url, count, stop, received), daemon=True)
    reader.start()
    while count and not received.value:
        time.sleep(0.05)
    yield lambda: int(received.value)
    stop.set()
    reader.join()


def _read_all(url: str, count: int, stop: Event, received: Synchronized[int]) -> None:
    with ThreadPoolExecutor(count or 1) as threads:
        list(threads.map(lambda _: _read(url, stop, received), range(count)))


def _read(url: str, stop: Event, received: Synchronized[int]) -> None:
    with urllib3.PoolManager(retries=False) as pool:
        while not stop.is_set():
            export = pool.request("GET", f"{url}/api/v1/runs/long/export", preload_content=False)
            for part in export.stream(65536):
                with received.get_lock():
                    received.value += len(part)
                if stop.is_set():
                    break
            export.close()
            stop.wait(float(export.headers.get("Retry-After", 0)))
