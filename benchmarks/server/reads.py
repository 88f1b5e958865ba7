"""Cost of charts and lists over HTTP from a real server, compared with SQL over wide rows: the same
samples, one row each, in the same database.

1. A run of a million steps is sent as batches, compacted and rolled up. The run of ten million
   steps repeats its rollups ten times, which is what a chart of it reads.
2. The chart requests minimum, maximum and last value of four columns at 2,000 points. The reference
   asks SQLite for minimum and maximum only.
3. Each figure is the median of requests on one keep-alive connection; chart and SQL requests
   alternate. On a busy machine much of that time is waiting, so the processor time of the server
   and of SQLite is printed as well.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import urllib3
from sqlalchemy import insert, select, update

from benchmarks.figures import Figure, from_samples
from benchmarks.server.real_server import Server, fresh_database, running_server
from benchmarks.server.workload import COUNTERS, DEVICE, columns, enter_runs
from memagent.wire.columns import pack
from memagent.wire.messages import Batch, Chunk, Finish
from memagent_server.store.buckets import Buckets
from memagent_server.store.compaction import compact_run
from memagent_server.store.engine import Database
from memagent_server.store.models import RunRow, StreamRow
from memagent_server.store.retention import Limits, find_prunable
from memagent_server.store.rollups import RollupLevels
from memagent_server.store.runs import finish_run
from memagent_server.store.samples import add_batch

TITLE = "charts of 4 series at 2,000 points, and lists"
STEPS, STEPS_QUICK = 1_000_000, 50_000
RUNS, RUNS_QUICK = 100_000, 2_000
REQUESTS, REQUESTS_QUICK = 60, 5
POINTS = 2_000
FIELDS = COUNTERS[:4]
ROWS = 5_000
CHART_MS, LIST_MS = 5.0, 5.0
PROJECTS, STATUSES = 20, ("completed", "failed", "oom", "lost_contact")


def measure(quick: bool) -> list[Figure]:
    steps, runs = (STEPS_QUICK, RUNS_QUICK) if quick else (STEPS, RUNS)
    requests = REQUESTS_QUICK if quick else REQUESTS
    with fresh_database() as database:
        fill_long_run(database, steps)
        _repeat(database, steps, 10)
        fill_list(database, runs)
        wide = _wide(database, steps)
        with running_server(database.url) as server, asking(server.url) as ask:
            charts = [
                *_charts(ask, wide, steps, requests),
                *_processor_time(server, ask, wide, steps, requests),
            ]
            lists = _lists(ask, runs, requests)
        return [*charts, *lists, _old(database, requests)]


def _charts(
    ask: Callable[[str], bytes], wide: sqlite3.Connection, steps: int, requests: int
) -> list[Figure]:
    whole, long = _chart("long"), _chart("longer")
    one, ten, rows, ratios, lengths = [], [], [], [], []
    for number in range(requests):
        one.append(timed(ask, whole))
        ten.append(timed(ask, long))
        lengths.append(ten[-1] / one[-1])
        if number < max(3, requests // 10):
            rows.append(timed(_of_wide_rows, wide, steps))
            ratios.append(one[-1] / rows[-1])
            ask(
                whole
            )  # reading a million rows has emptied every cache, and charts are not asked for after that
    zoomed = [
        from_samples(f"{width:,} of them, zoomed", "ms", _times(ask, _chart("long", steps // 3 + 7, width), requests), scale=1e3)
        for width in (steps // 5, steps // 50, steps // 500)
    ]  # fmt: skip
    return [
        from_samples(f"{steps:,} steps", "ms", one, scale=1e3, goal=CHART_MS),
        from_samples(f"{10 * steps:,} steps", "ms", ten, scale=1e3),
        from_samples("ten times the steps by these", "x", lengths, goal=2.0),
        from_samples("SQL over wide rows", "ms", rows, scale=1e3),
        from_samples("chart by SQL over wide rows", "x", ratios, goal=1 / 200),
        *zoomed,
    ]


def _processor_time(
    server: Server, ask: Callable[[str], bytes], wide: sqlite3.Connection, steps: int, requests: int
) -> list[Figure]:
    """Return the processor time of a chart of all steps, and of the same query in SQL."""
    before = server.cpu_s()
    for _ in range(5 * requests):
        ask(_chart("long"))
    chart = (server.cpu_s() - before) / (5 * requests)
    before = time.process_time()
    _of_wide_rows(wide, steps)
    rows = time.process_time() - before
    return [
        Figure(f"{steps:,} steps: the server's processor time", "ms", 1e3 * chart),
        Figure("SQL over wide rows: processor time", "ms", 1e3 * rows),
        Figure("processor time of the chart by SQL's", "x", chart / rows, goal=1 / 200),
    ]


def _lists(ask: Callable[[str], bytes], runs: int, requests: int) -> list[Figure]:
    deep = _cursor(runs // 2)
    pages = {
        "all": "limit=50",
        "a project and a status": "limit=50&project=project-7&status=oom",
        "a project and a status, oldest first": "limit=50&project=project-7&status=oom&sort=created_at",
        "all, in the midst": f"limit=50&cursor={deep}",
        "a status, in the midst": f"limit=50&status=failed&cursor={deep}",
        "found by name": "limit=50&q=name-9",
    }
    return [
        from_samples(f"list of {runs:,} runs: {what}", "ms", _times(ask, f"/api/v1/runs?{query}", requests), scale=1e3, goal=LIST_MS)
        for what, query in pages.items()
    ]  # fmt: skip


def _old(database: Database, requests: int) -> Figure:
    """Measure the worker's daily maintenance."""

    def ask() -> None:
        with database.read() as session:
            assert find_prunable(session, Limits(1e9, 1e9), sizes=False) == []

    return from_samples(
        "runs with something to let go of", "ms", [timed(ask) for _ in range(requests)], scale=1e3
    )


# -- filling -----------------------------------------------------------------------------------------------------------


def fill_long_run(database: Database, steps: int) -> None:
    """Store the run `long` as an agent would."""
    enter_runs(database, ["long"], 1e9)
    for seq, first in enumerate(range(0, steps, ROWS)):
        packed = pack(columns(first, min(ROWS, steps - first)))
        with database.write() as session:
            add_batch(
                session, "long", Batch(seq=seq, chunks=[Chunk(stream=DEVICE, packed=packed)]), 1e9
            )
    with database.write() as session:
        finish_run(session, "long", Finish(status="completed", finished_at=2e9), 2e9)
    compact_run(database, "long")


def _repeat(database: Database, steps: int, times: int) -> None:
    """Store the run `longer`, which has rollups only."""
    enter_runs(database, ["longer"], 1e9)
    packed = pack(columns(0, 1))
    with database.write() as session:
        add_batch(
            session, "longer", Batch(seq=0, chunks=[Chunk(stream=DEVICE, packed=packed)]), 1e9
        )
        finish_run(session, "longer", Finish(status="completed", finished_at=2e9), 2e9)
    with database.write() as session:
        stream_id = session.scalars(select(StreamRow.id).where(StreamRow.run_id == "long")).one()
        other_id = session.scalars(select(StreamRow.id).where(StreamRow.run_id == "longer")).one()
        once, levels = (
            RollupLevels(session, "long", stream_id).read(0),
            RollupLevels(session, "longer", other_id),
        )
        for number in range(times):
            levels.extend(_later(once, number * steps))
        levels.save(session)
        last = {
            "samples": times * steps,
            "compacted_seq": times * steps - 1,
            "rolled_seq": times * steps - 1,
        }
        session.execute(
            update(StreamRow).where(StreamRow.id == other_id).values(**last, is_compacted=True)
        )


def _later(buckets: Buckets, steps: int) -> Buckets:
    return Buckets(
        buckets.seqs + steps, buckets.rows, {**buckets.stats, "step": buckets.stats["step"] + steps}
    )


def fill_list(database: Database, runs: int) -> None:
    rows = (
        {
            "id": f"run-{number}", "project": f"project-{number % PROJECTS}", "name": f"name-{number}", "host": "host",
            "user": "somebody", "status": STATUSES[number % 7 % 4], "is_archived": False, "peak_ratio": 0.5,
            "created_at": 1e9 + number, "last_seen_at": 1e9 + number, "finished_at": 1.5e9 + number,
            "config": {}, "tags": [], "environment": {},
        }
        for number in range(runs)
    )  # fmt: skip
    with database.write() as session:
        while some := list(islice(rows, 5_000)):
            session.execute(insert(RunRow), some)


def _wide(database: Database, steps: int) -> sqlite3.Connection:
    """Store one row per sample and one column per counter."""
    connection = sqlite3.connect(str(database.engine.url.database))
    names = ["step", "time_s", *COUNTERS]
    connection.execute(f"CREATE TABLE wide (step INTEGER PRIMARY KEY, {', '.join(names[1:])})")
    for first in range(0, steps, ROWS):
        part = columns(first, min(ROWS, steps - first))
        connection.executemany(
            f"INSERT INTO wide VALUES ({', '.join('?' * len(names))})",
            zip(*(part[name] for name in names), strict=True),
        )
    connection.commit()
    return connection


def _of_wide_rows(connection: sqlite3.Connection, steps: int) -> None:
    both = ", ".join(f"min({name}), max({name})" for name in FIELDS)
    rows = connection.execute(
        f"SELECT max(step), {both} FROM wide GROUP BY step / {max(1, steps // POINTS)}"
    ).fetchall()
    assert len(rows) >= min(POINTS, steps)


# -- asking ------------------------------------------------------------------------------------------------------------


@contextmanager
def asking(url: str) -> Iterator[Callable[[str], bytes]]:
    """Return ask(path), which returns the body of a GET."""
    pool = urllib3.PoolManager(retries=False)

    def ask(path: str) -> bytes:
        answer = pool.request("GET", url + path, timeout=60.0)
        assert answer.status == 200, answer.data
        return answer.data

    yield ask
    pool.clear()


def _chart(run_id: str, first: int | None = None, width: int = 0) -> str:
    window = "" if first is None else f"&from={first}&to={first + width - 1}"
    return f"/api/v1/runs/{run_id}/series?fields={','.join(FIELDS)}&points={POINTS}{window}"


def _cursor(number: int) -> str:
    """Return the cursor of the page that ends with that run: see `run_list`."""
    return (
        base64.urlsafe_b64encode(json.dumps([1e9 + number, f"run-{number}"]).encode())
        .decode()
        .rstrip("=")
    )


def _times(ask: Callable[[str], bytes], path: str, requests: int) -> list[float]:
    ask(path)
    return [timed(ask, path) for _ in range(requests)]


def timed(do: Callable[..., object], *arguments: object) -> float:
    """Return the seconds that a call took."""
    began = time.perf_counter()
    do(*arguments)
    return time.perf_counter() - began
