"""Command line. See `benchmarks.reliability`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from random import Random

import benchmarks.reliability
from benchmarks.reliability import report
from benchmarks.reliability.check import samples_of
from benchmarks.reliability.environment import FaultEnvironment
from benchmarks.reliability.episode import Episode, run_episode
from benchmarks.reliability.faults import FAULTS
from benchmarks.reliability.load import shortened_delays
from benchmarks.reliability.malformed import RUN, besiege
from tests.postgres import find_programs

BODIES, BODIES_QUICK = 10_000, 300


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reliability", description=benchmarks.reliability.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        metavar="N",
        help="how long faults are injected (default 10)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="every fault once, as short as is useful"
    )
    parser.add_argument(
        "--citus", action="store_true", help="over a coordinator and two nodes of Citus only"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    arguments = parser.parse_args()
    rng = Random(arguments.seed)
    with shortened_delays(), ExitStack() as stack:
        worlds = _environments(rng, has_citus=arguments.citus)
        environments = [stack.enter_context(world) for world in worlds]
        episodes = list(
            _episodes(environments, rng, minutes=0.0 if arguments.quick else arguments.minutes)
        )
        sieges = [
            _post_malformed_bodies(
                world, BODIES_QUICK if arguments.quick else BODIES, arguments.seed
            )
            for world in environments
        ]
    rows = report.rows(episodes)
    wrong = report.complaints(episodes)
    print(f"\n{report.table(rows)}\n", *sieges, *wrong, sep="\n")
    if arguments.json:
        content = {
            "seed": arguments.seed,
            "quick": arguments.quick,
            "rows": rows,
            "malformed": sieges,
            "wrong": wrong,
        }
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")
    return 1 if wrong else 0


def _environments(rng: Random, *, has_citus: bool) -> Iterator[FaultEnvironment]:
    programs = find_programs()
    if has_citus:
        yield FaultEnvironment(rng, programs, has_citus=True)
        return
    yield FaultEnvironment(rng)
    if programs is None:
        print("PostgreSQL is not installed: SQLite only", file=sys.stderr)
    else:
        yield FaultEnvironment(rng, programs)


def _episodes(
    environments: list[FaultEnvironment], rng: Random, minutes: float
) -> Iterator[Episode]:
    """Yield every fault once in random order, repeatedly until the time is over."""
    until = time.monotonic() + 60 * minutes
    for round_ in count():
        plan = [
            (world, fault)
            for world in environments
            for fault in FAULTS
            if world.name in fault.databases
        ]
        for number, (world, fault) in enumerate(rng.sample(plan, len(plan))):
            if round_ and time.monotonic() > until:
                return
            episode = run_episode(world, fault, f"r{round_}-{number}", rng, is_short=not minutes)
            verdict = "right" if episode.is_right else "WRONG"
            print(
                f"{world.name}: {fault.name}: {episode.verdict.sent:,} samples, {verdict}",
                flush=True,
            )
            yield episode
        if not minutes:
            return


def _post_malformed_bodies(world: FaultEnvironment, bodies: int, seed: int) -> str:
    """Return a sentence about the malformed bodies. Raises AssertionError if one did harm."""
    siege = besiege(world.server.url, bodies, world.web_processes, seed)
    stored, accepted = samples_of(world.database_url, RUN), sum(siege.accepted.values())
    assert stored == accepted, f"{stored} samples are stored, of {accepted} that were accepted"
    statuses = ", ".join(
        f"{status} {number:,}" for status, number in sorted(siege.statuses.items())
    )
    return (
        f"{world.name}: {siege.statuses.total():,} malformed bodies: {statuses}; the largest web process took "
        f"{siege.most_rss_bytes / 2**20:.0f} MiB; nothing stored of what was refused"
    )


if __name__ == "__main__":
    sys.exit(main())
