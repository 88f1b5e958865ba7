"""Load of a whole fleet on the server, at the agents' pace: processor time of ingest, compaction,
forecasts and alerts.

`python -m benchmarks.server.fleet [--ranks N] [--seconds S]` runs any size; `--ranks 8000` is the
whole fleet. Each rank makes two steps a second, and sends its samples every five seconds, or
every 30: the interval that a busy server requests of calm ranks (`--flush`). Streams start with 0 to 511 samples, so that as many reach the compaction size as in a continuing run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import psutil

from benchmarks.figures import Figure, quantile, table
from benchmarks.server.load import TOKEN, Client, post_all
from benchmarks.server.ranks import RANKS_A_RUN, STEP_S, batch, body, run_of, start
from benchmarks.server.real_server import Server, fresh_database, running_server
from memagent_server.store.engine import Database
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch

TITLE = "8,000 ranks at 2 steps a second"
WHOLE = 8_000
RANKS, SECONDS = 800, 30.0
RANKS_QUICK, SECONDS_QUICK = 80, 6.0
FLUSH_S, BUSY_FLUSH_S = 5.0, 30.0
BUSY_SECONDS = 60.0
UNIT_ROWS = 512
PROCESSES = 3
"""Number of web processes."""
IDLE_S, SETTLE_S = 4.0, 3.0
GOAL_CORES = 1.5


def measure(quick: bool) -> list[Figure]:
    """Measure a part of the fleet at both intervals, and scale the results."""
    ranks = RANKS_QUICK if quick else RANKS
    often = fleet(ranks, SECONDS_QUICK if quick else SECONDS, FLUSH_S)
    seldom_s = SECONDS_QUICK if quick else BUSY_FLUSH_S
    return often + fleet(ranks, SECONDS_QUICK if quick else BUSY_SECONDS, seldom_s)


def fleet(ranks: int, seconds: float, flush_s: float) -> list[Figure]:
    """Return the figures of `ranks` over `seconds`, scaled to the whole fleet."""
    rows = int(flush_s / STEP_S)
    with fresh_database() as database:
        began_at = time.time() - UNIT_ROWS * STEP_S
        pasts = [7 * rank % UNIT_ROWS for rank in range(ranks)]
        _prepare(database, pasts, began_at)
        database.close()
        clients = [
            _client(first, pasts, seconds, flush_s, began_at)
            for first in range(0, ranks, RANKS_A_RUN)
        ]
        environ = {"MEMAGENT_ADMIN_TOKEN": TOKEN}
        with running_server(
            database.url, "--workers", str(PROCESSES), environ=environ, worker=True
        ) as server:
            _wait_for_rest(server)
            idle = _by_role(server)
            time.sleep(IDLE_S)
            before = _by_role(server)
            answers = post_all(server.url, clients)
            time.sleep(SETTLE_S)
            after = _by_role(server)
    scale, took_s = WHOLE / ranks, answers.wall_s
    cores = {}
    for role in after:
        rest = (before[role] - idle[role]) / IDLE_S
        cores[role] = rest + scale * max(0.0, (after[role] - before[role]) / took_s - rest)
    note = f"{ranks} ranks for {took_s:.0f} s" + (
        f"; what they add to rest, times {scale:.0f}" if scale != 1 else ""
    )
    refused = f"{answers.refused} refused" if answers.refused else ""
    return [
        Figure(f"a batch every {flush_s:.0f} s: processor time, all of it", "cores", sum(cores.values()), goal=GOAL_CORES, note=note),
        *(Figure(f"... {role}", "cores", used) for role, used in cores.items()),
        Figure(
            "samples a second", "/s", scale * len(answers.seconds) * rows / took_s, goal=WHOLE / STEP_S * 0.9,
            more_is_better=True, note=refused,
        ),
        Figure("a flush is acknowledged, p99", "ms", 1e3 * quantile(answers.seconds, 0.99)),
    ]  # fmt: skip


def _prepare(database: Database, pasts: Sequence[int], began_at: float) -> None:
    for rank, past in enumerate(pasts):
        with database.write() as session:
            start_run(session, start(rank), began_at)
            if past:
                add_batch(session, run_of(rank), batch(rank, 0, 0, past, began_at), time.time())


def _client(
    first: int, pasts: Sequence[int], seconds: float, flush_s: float, began_at: float
) -> Client:
    """One connection for all ranks of a run, which send in turn."""
    rows = int(flush_s / STEP_S)
    mine = range(first, min(first + RANKS_A_RUN, len(pasts)))
    bodies = [
        body(rank, flush + bool(pasts[rank]), pasts[rank] + flush * rows, rows, began_at)
        for flush in range(int(seconds / flush_s))
        for rank in mine
    ]
    delay_s = flush_s / len(mine) * first / len(pasts)
    return Client(f"/api/v1/runs/{run_of(first)}/batches", bodies, flush_s / len(mine), delay_s)


def _wait_for_rest(server: Server) -> None:
    """Wait until the worker has read the history."""
    before = -1.0
    while (now := sum(_by_role(server).values())) - before > 0.15:
        before = now
        time.sleep(2.0)


def _by_role(server: Server) -> dict[str, float]:
    """Return processor seconds of the web processes with their parent, and of the worker."""
    seconds = {"web": 0.0, "worker": 0.0}
    for process in [server.process, *server.process.children(recursive=True)]:
        times = process.cpu_times()
        seconds["worker" if "worker" in process.cmdline() else "web"] += times.user + times.system
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server.fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--flush", type=float, default=FLUSH_S, help="seconds between batches")
    options = parser.parse_args()
    rows = fleet(options.ranks, options.seconds, options.flush)
    print(f"load {psutil.getloadavg()[0]:.1f}\n{table({TITLE: rows})}")


if __name__ == "__main__":
    main()
