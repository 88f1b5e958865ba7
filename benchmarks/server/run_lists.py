"""Cost of arranged lists of 100,000 runs over HTTP: filters, orders, columns and groups by settings
and scalars, on SQLite and on PostgreSQL.

1. A run has 20 settings and four scalars; 200 of the runs are running.
2. The first request of a column reads it for all runs, and is a figure of its own.
3. The others are repeated on one keep-alive connection; `p99` is the 90th percentile here, because
   there are 60 of each.

`python -m benchmarks.server.run_lists [--quick]` runs it alone.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import insert, text

from benchmarks.figures import Figure, from_samples, quantile, table
from benchmarks.machine import describe
from benchmarks.server.reads import asking, timed
from benchmarks.server.real_server import Server, fresh_database, running_server
from memagent_server.store.engine import Database
from memagent_server.store.models import RunRow, StreamRow

TITLE = "arranged lists"
RUNS, RUNS_QUICK = 100_000, 2_000
RUNNING = 200
REQUESTS, REQUESTS_QUICK = 60, 5
PAGE_MS, ARRANGED_MS = 10.0, 20.0
STATUSES = ("completed", "failed", "oom", "lost_contact")
RUNS_PATH, GROUPS_PATH = "/api/v1/runs", "/api/v1/groups"
QUERIES: dict[str, tuple[float, dict[str, str]]] = {
    "page": (PAGE_MS, {}),
    "page by a setting": (PAGE_MS, {"sort": "config.lr"}),
    "two columns, by a setting, filtered": (
        ARRANGED_MS,
        {
            "columns": "config.lr,config.model.layers",
            "sort": "-config.lr",
            "where": "config.batch_size >= 32 and peak_ratio > 0.5",
        },
    ),
    "two columns, by a scalar, filtered by another": (
        ARRANGED_MS,
        {
            "columns": "config.lr,scalar.loss",
            "sort": "scalar.loss",
            "where": "scalar.accuracy > 0.9",
        },
    ),
    "groups by two settings, two columns, filtered": (
        ARRANGED_MS,
        {
            "by": "config.optimizer.name,config.model.layers",
            "columns": "config.lr,scalar.loss",
            "where": "config.batch_size >= 32 and peak_ratio > 0.5",
        },
    ),
}


def measure(quick: bool) -> list[Figure]:
    figures = []
    for is_postgres in (False, True):
        with fresh_database(postgres=is_postgres) as database:
            _fill(database, RUNS_QUICK if quick else RUNS)
            with running_server(database.url) as server, asking(server.url) as ask:
                requests = REQUESTS_QUICK if quick else REQUESTS
                figures += _lists(server, ask, "PostgreSQL" if is_postgres else "SQLite", requests)
    return figures


def _lists(
    server: Server, ask: Callable[[str], bytes], where: str, requests: int
) -> Iterator[Figure]:
    for name, (goal, query) in QUERIES.items():
        route = GROUPS_PATH if "by" in query else RUNS_PATH
        path = f"{route}?{urlencode({**query, 'limit': '50'})}"
        first = timed(ask, path)
        before = server.cpu_s()
        times = [timed(ask, path) for _ in range(requests)]
        cpu_s = (server.cpu_s() - before) / requests
        figure = from_samples(f"{where}: {name}", "ms", times, scale=1e3, goal=goal)
        yield Figure(f"{where}: {name}, first", "ms", 1e3 * first)
        yield replace(figure, p99=1e3 * quantile(times, 0.9))
        yield Figure(f"{where}: {name}, processor time of the web process", "ms", 1e3 * cpu_s)


def _fill(database: Database, runs: int) -> None:
    source = random.Random(0)
    rows = (_run(source, number, runs) for number in range(runs))
    with database.write() as session:
        while some := list(islice(rows, 5_000)):
            session.execute(insert(RunRow), some)
            session.execute(insert(StreamRow), [_scalars(source, run["id"]) for run in some])
        # PostgreSQL's autovacuum does so within a minute
        session.execute(text("ANALYZE"))


def _run(source: random.Random, number: int, runs: int) -> dict[str, Any]:
    now = 1e9 + number
    config = {
        "lr": source.choice([1e-2, 1e-3, 3e-4, 1e-4]) * source.random(),
        "batch_size": source.choice([8, 16, 32, 64]),
        "model": {"layers": source.randrange(2, 49), "width": source.choice([512, 768, 1024])},
        "optimizer": {"name": source.choice(["adamw", "sgd"]), "betas": [0.9, 0.95]},
        **{f"option_{place}": source.randrange(100) for place in range(15)},
    }
    is_running = number >= runs - RUNNING
    return {
        "id": f"run-{source.getrandbits(64):x}", "project": f"project-{number % 20}",
        "name": f"name-{number}", "host": "host", "user": f"user-{number % 30}", "tags": [],
        "status": "running" if is_running else STATUSES[number % 7 % 4], "is_archived": False,
        "peak_ratio": source.random(), "created_at": now, "last_seen_at": now,
        "finished_at": None if is_running else now + 1e3, "config": config, "environment": {},
        "changed_at": now,
    }  # fmt: skip


def _scalars(source: random.Random, run_id: str) -> dict[str, Any]:
    names = ("loss", "accuracy", "tokens", "grad_norm")
    return {
        "run_id": run_id, "rank": 0, "attempt": 0, "device": "scalars", "kind": "scalars", "name": "",
        "is_current": True, "latest": {name: source.random() for name in names},
    }  # fmt: skip


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server.run_lists")
    parser.add_argument("--quick", action="store_true", help="few runs and rounds")
    figures = measure(parser.parse_args().quick)
    machine = describe()
    print(f"{machine['processor']}, {machine['cores']} cores, load {machine['load']:.1f}")
    print(table({TITLE: figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
