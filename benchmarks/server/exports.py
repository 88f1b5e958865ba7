"""Batches beside strangers: half-open connections, and clients that read exports fast, slowly or not
at all, at one web process. No batch that was acknowledged may be lost.

A late batch doesn't delay the next one's due time, so a busy machine that slows all of it leaves the
ratios as they are. The kinds of strangers alternate in short phases for the same reason.

`python -m benchmarks.server.exports [--rounds N] [--seconds S] [--kinds KIND ...] [--postgres]` runs
longer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

import psutil
from sqlalchemy import func, select

from benchmarks.figures import Figure, quantile, table
from benchmarks.server.load import TOKEN, Client, post_all
from benchmarks.server.over_http import checked, clients
from benchmarks.server.real_server import fresh_database, running_server
from benchmarks.server.strangers import KINDS, Readings, strangers
from benchmarks.server.workload import batch, enter_runs
from memagent_server.store.engine import Database
from memagent_server.store.models import BatchRow
from memagent_server.store.samples import add_batch

TITLE = "batches of 16 samples beside strangers"
COUNTS = {
    "none": 0,
    "busy": 1,
    "half-open": 500,
    "unread": 10,
    "slow": 10,
    "reading": 10,
    "all": 510,
}
EVERY_S, CLIENTS = 0.5, 10
ROUNDS, BATCHES = 4, 20
LONG_BATCHES, LONG_BATCHES_QUICK = 200, 20
GOAL = 2.0


def measure(quick: bool) -> list[Figure]:
    """Alternate between the kinds of strangers, with the same batches."""
    rounds, count = (1, 5) if quick else (ROUNDS, BATCHES)
    return beside(KINDS, rounds, count, LONG_BATCHES_QUICK if quick else LONG_BATCHES)


def beside(
    kinds: Sequence[str], rounds: int, count: int, long_batches: int, *, postgres: bool = False
) -> list[Figure]:
    """Return the figures of `rounds` phases of `count` batches a client beside each kind."""
    paced = clients(CLIENTS, count, 16, every_s=EVERY_S)
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    processor: dict[str, float] = dict.fromkeys(kinds, 0.0)
    read = {kind: Readings() for kind in kinds}
    phases = [(f"{kind}-{number}", kind) for number in range(rounds) for kind in kinds]
    with fresh_database(postgres=postgres) as database:
        names = [f"{phase}-{index}" for phase, _ in phases for index in range(CLIENTS)]
        enter_runs(database, ["long", *names], time.time())
        _add_long_run(database, long_batches)
        database.close()
        with running_server(database.url, environ={"MEMAGENT_ADMIN_TOKEN": TOKEN}) as server:
            for phase, kind in phases:
                with strangers(server.url, kind, COUNTS[kind]) as readings:
                    before = server.cpu_s()
                    answers = checked(post_all(server.url, _renamed(paced, phase)))
                    processor[kind] += server.cpu_s() - before
                read[kind] += readings
                seconds[kind] += answers.seconds
        lost = len(names) * count - _stored(database, names)
    figures = [one for kind in kinds for one in _figures(kind, seconds, processor, read[kind])]
    return [*figures, Figure("acknowledged batches lost", "", lost, goal=0)]


def _figures(
    kind: str, seconds: dict[str, list[float]], processor: dict[str, float], read: Readings
) -> list[Figure]:
    middle, slow = (1e3 * quantile(seconds[kind], share) for share in (0.5, 0.99))
    cost_ms = 1e3 * processor[kind] / len(seconds[kind])
    note = f"{cost_ms:.1f} ms of the server's processor time a batch"
    note += f"; {read}" if kind in ("slow", "reading", "all") else ""
    name = f"{COUNTS[kind]} {kind}" if COUNTS[kind] else "nobody"
    row = Figure(f"beside {name}", "ms", middle, p99=slow, note=note)
    if kind == "none":
        return [row]
    middle_alone, alone = (1e3 * quantile(seconds["none"], share) for share in (0.5, 0.99))
    return [
        row,
        Figure("... p50 by p50 beside nobody", "x", middle / middle_alone),
        Figure("... p99 by p99 beside nobody", "x", slow / alone, goal=GOAL),
    ]


def _renamed(paced: list[Client], phase: str) -> list[Client]:
    return [
        replace(client, path=f"/api/v1/runs/{phase}-{index}/batches", catches_up=False)
        for index, client in enumerate(paced)
    ]


def _stored(database: Database, run_ids: list[str]) -> int:
    with database.read() as session:
        query = select(func.count()).where(BatchRow.run_id.in_(run_ids))
        return session.scalar(query) or 0


def _add_long_run(database: Database, batches: int) -> None:
    with database.write() as session:
        for seq in range(batches):
            add_batch(session, "long", batch(seq, 500), time.time())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server.exports", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=BATCHES * EVERY_S, help="of a phase")
    parser.add_argument("--kinds", nargs="+", choices=KINDS[1:], default=KINDS[1:])
    parser.add_argument("--postgres", action="store_true", help="instead of SQLite")
    options = parser.parse_args()
    count = max(1, round(options.seconds / EVERY_S))
    rows = beside(
        ["none", *options.kinds], options.rounds, count, LONG_BATCHES, postgres=options.postgres
    )
    print(f"load {psutil.getloadavg()[0]:.1f}\n{table({TITLE: rows})}")


if __name__ == "__main__":
    main()
