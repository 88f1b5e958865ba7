"""The most that one request of at most 8 MiB costs a web process: processor time and memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import psutil
import urllib3

from benchmarks.figures import Figure
from benchmarks.server.costly import Request, mixtures, shapes
from benchmarks.server.real_server import Server, fresh_database, running_server

TITLE = "the worst request"
GOAL_MIB, GOAL_S = 256.0, 1.0
SHOWN = 5
MIXTURES, MIXTURES_QUICK = 200, 10


@dataclass(frozen=True)
class Cost:
    """What a request has cost. `rest_mib` is what the process kept of it and of those before."""

    name: str
    status: int
    processor_s: float
    peak_mib: float
    rest_mib: float


def measure(quick: bool) -> list[Figure]:
    with fresh_database() as database:
        database.close()
        costs = measured(database.url, MIXTURES_QUICK if quick else MIXTURES)
    by_time = sorted(costs, key=lambda cost: -cost.processor_s)[:SHOWN]
    by_memory = sorted(costs, key=lambda cost: -cost.peak_mib)[:SHOWN]
    kept = f"after {len(costs)} requests"
    return [
        *(
            Figure(one.name, "s", one.processor_s, goal=GOAL_S, note=f"answer {one.status}")
            for one in by_time
        ),
        *(
            Figure(one.name, "MiB", one.peak_mib, goal=GOAL_MIB, note=f"answer {one.status}")
            for one in by_memory
        ),
        Figure("memory kept", "MiB", costs[-1].rest_mib, goal=GOAL_MIB, note=kept),
    ]


def measured(database_url: str, mixed: int = 0) -> list[Cost]:
    """Send all shapes and some mixtures to a server with one web process."""
    with running_server(database_url) as server, urllib3.PoolManager() as pool:
        children = server.process.children()
        (web,) = (one for one in children if "spawn_main" in " ".join(one.cmdline()))
        pool.request("GET", f"{server.url}/api/v1/runs")
        rest = web.memory_info().rss
        return [_cost(server, pool, web, rest, one) for one in chain(shapes(), mixtures(mixed))]


def _cost(
    server: Server, pool: urllib3.PoolManager, web: psutil.Process, rest: int, one: Request
) -> Cost:
    Path(f"/proc/{web.pid}/clear_refs").write_text("5")  # from here on, the peak is this request's
    before_s, before = _processor_s(web), web.memory_info().rss
    status = pool.request(
        one.method, server.url + one.path, body=one.body, headers=one.headers, retries=False
    ).status
    sizes = (_peak_bytes(web) - before, web.memory_info().rss - rest)
    return Cost(one.name, status, _processor_s(web) - before_s, *(size / 2**20 for size in sizes))


def _processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _peak_bytes(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+)", status)
    assert found is not None
    return 1024 * int(found[1])
