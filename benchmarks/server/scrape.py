"""Scrape of 1,000 active ranks with 15 series each, in process: read the store and write the text,
compared with prometheus-client's writer.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from benchmarks.figures import Figure, from_samples
from benchmarks.server.ranks import batch, run_of, start
from benchmarks.server.real_server import fresh_database
from memagent_server.metrics.collector import SlowValues, collect
from memagent_server.metrics.exposition import GZIP_LEVEL, Scrape, write
from memagent_server.store.engine import Database
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch

TITLE = "a scrape of 1,000 ranks with 15 series each"
RANKS, RANKS_QUICK = 1_000, 50
GOAL_MS = 100.0


def measure(quick: bool) -> list[Figure]:
    """Alternate whole scrapes in both formats with prometheus-client's writer over the same
    families.
    """
    rounds, ranks = (2, RANKS_QUICK) if quick else (10, RANKS)
    with fresh_database() as database:
        now = time.time()
        _fill(database, ranks, now)
        whole, openmetrics, theirs, small, ratios = [], [], [], [], []
        for _ in range(rounds):
            whole.append(_timed(lambda: _scrape(database, now, openmetrics=False)))
            openmetrics.append(_timed(lambda: _scrape(database, now, openmetrics=True)))
            read = Scrape(_read(database, now), own_metrics=[], streams=ranks, at=now)
            ours = _timed(lambda read=read: write(read.families, openmetrics=False))
            theirs.append(_timed(lambda read=read: generate_latest(read)))
            ratios.append(theirs[-1] / ours)
            text = generate_openmetrics(read)
            small.append(_timed(lambda text=text: gzip.compress(text, GZIP_LEVEL)))
    return [
        from_samples(
            "text", "ms", whole, scale=1e3, goal=GOAL_MS, note=f"{text.count(b'run_id='):,} series"
        ),
        from_samples("OpenMetrics", "ms", openmetrics, scale=1e3, goal=GOAL_MS),
        from_samples(f"gzip level {GZIP_LEVEL}", "ms", small, scale=1e3),
        from_samples("prometheus-client's writer alone", "ms", theirs, scale=1e3),
        from_samples("... by ours", "x", ratios),
    ]


def _fill(database: Database, ranks: int, now: float) -> None:
    for rank in range(ranks):
        with database.write() as session:
            start_run(session, start(rank), now)
            add_batch(session, run_of(rank), batch(rank, 0, 0, 4, now), now)


def _read(database: Database, now: float) -> list[Metric]:
    return collect(database, now, SlowValues(), RANKS + 1).families


def _scrape(database: Database, now: float, *, openmetrics: bool) -> bytes:
    return write(_read(database, now), openmetrics=openmetrics)


def _timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
