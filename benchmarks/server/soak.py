"""Memory growth over time: `python -m benchmarks.server.soak [--minutes M] [--ranks N]`, by default
for an hour. Not run in CI.

Runs come and go: each round starts new runs, lets them send, lists and scrapes them, and finishes
them. Resident memory of the web process and the worker is read every few seconds. The output is the
slope of each over the second half, in MiB an hour.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence

import urllib3

from benchmarks.server.load import Client, post_all
from benchmarks.server.ranks import RANKS_A_RUN, STEP_S, body, start
from benchmarks.server.real_server import Server, fresh_database, running_server
from memagent.wire.codec import encode
from memagent.wire.messages import Finish, RunStart

ROUND_S, EVERY_S = 30.0, 5.0
ROWS = 50
MIB = 2**20


def soak(minutes: float, ranks: int) -> dict[str, list[tuple[float, float]]]:
    """(seconds, MiB) by role."""
    read: dict[str, list[tuple[float, float]]] = {}
    stop = threading.Event()
    with fresh_database() as database:
        database.close()
        with running_server(database.url, worker=True) as server:
            began = time.monotonic()
            watching = threading.Thread(target=_watch, args=(server, began, read, stop))
            watching.start()
            number = 0
            while time.monotonic() - began < 60 * minutes:
                _round(server, number, ranks)
                number += 1
                print(
                    {role: round(points[-1][1]) for role, points in read.items()},
                    file=sys.stderr,
                    flush=True,
                )
            stop.set()
            watching.join()
    return read


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return MiB an hour by least squares over the second half; the first half is warm-up."""
    late = points[len(points) // 2 :]
    middle = sum(at for at, _ in late) / len(late)
    mean = sum(size for _, size in late) / len(late)
    spread = sum((at - middle) ** 2 for at, _ in late)
    return (
        3600 * sum((at - middle) * (size - mean) for at, size in late) / spread if spread else 0.0
    )


def _round(server: Server, number: int, ranks: int) -> None:
    pool = urllib3.PoolManager(headers={"Content-Type": "application/msgpack"})
    began_at = time.time()
    clients = []
    for rank in range(ranks):
        message = start(rank)
        run_id = f"{message.run_id}-{number}"
        renamed = RunStart(
            run_id=run_id,
            project="soak",
            rank=message.rank,
            world_size=RANKS_A_RUN,
            devices=message.devices,
        )
        _post(pool, f"{server.url}/api/v1/runs", encode(renamed))
        bodies = [
            body(rank, flush, flush * ROWS, ROWS, began_at - ROUND_S / STEP_S) for flush in range(int(ROUND_S / EVERY_S))
        ]  # fmt: skip
        clients.append(
            Client(f"/api/v1/runs/{run_id}/batches", bodies, EVERY_S, EVERY_S * rank / ranks)
        )
    post_all(server.url, clients)
    for path in ("/metrics", "/", "/api/v1/runs?limit=50", "/api/v1/alerts"):
        pool.request("GET", server.url + path)
    for rank in range(ranks):
        finish = Finish(status="completed", step=ROWS, rank=rank % RANKS_A_RUN)
        _post(
            pool, f"{server.url}/api/v1/runs/{start(rank).run_id}-{number}/finish", encode(finish)
        )


def _post(pool: urllib3.PoolManager, url: str, content: bytes) -> None:
    answer = pool.request("POST", url, body=content)
    if answer.status >= 300:
        raise RuntimeError(f"{url} answered {answer.status}: {answer.data[:200]!r}")


def _watch(
    server: Server, began: float, read: dict[str, list[tuple[float, float]]], stop: threading.Event
) -> None:
    while not stop.wait(EVERY_S):
        for process in server.process.children(recursive=True):
            command = process.cmdline()
            role = (
                "worker"
                if "worker" in command
                else "web"
                if "multiprocessing.spawn" in " ".join(command)
                else ""
            )
            if role:
                size = process.memory_info().rss / MIB
                read.setdefault(role, []).append((time.monotonic() - began, size))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=64)
    arguments = parser.parse_args()
    for role, points in sorted(soak(arguments.minutes, arguments.ranks).items()):
        print(
            f"{role}: {points[0][1]:.0f} MiB at first, {points[-1][1]:.0f} at last, {slope(points):+.1f} MiB an hour"
        )


if __name__ == "__main__":
    main()
