"""One episode: a run under load, a fault in its middle, the delivery of the rest, and the verdict
on the store.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from benchmarks.reliability.check import Verdict, check
from benchmarks.reliability.environment import FaultEnvironment
from benchmarks.reliability.faults import Fault
from benchmarks.reliability.load import Load

BATCHES_AROUND = (5, 40)
"""Minimum and maximum number of batches acknowledged before the fault, and made after its repair.
"""
EVERY_S, SHORT_EVERY_S = 0.05, 0.1
"""Seconds between two batches of a rank."""
PATIENCE_S = 600.0
LOG_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Episode:
    """Result of an episode. `recovered_s`: seconds from the repair to the acknowledgement of the
    last batch.
    """

    fault: str
    database: str
    verdict: Verdict
    recovered_s: float
    answers: Counter[str]
    complaints: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        return (
            self.verdict.is_right
            and self.verdict.sent == self.verdict.found
            and not self.complaints
        )


def run_episode(
    world: FaultEnvironment, fault: Fault, name: str, rng: Random, *, is_short: bool
) -> Episode:
    """Run an episode. `name` becomes the run's name. `short`: use the minimum durations."""
    logged = len(world.server.errors)
    around = [BATCHES_AROUND[0] if is_short else rng.randint(*BATCHES_AROUND) for _ in range(2)]
    holds_s = fault.holds_s[0] if is_short else rng.uniform(*fault.holds_s)
    every_s = SHORT_EVERY_S if is_short else EVERY_S
    with Load(
        world.agents_url, name, world.folder / "spool", every_s=every_s, clock=_clock(rng)
    ) as load:
        load.wait_for(around[0])
        with fault.strike(world, rng):
            time.sleep(holds_s)
            if fault.felt is not None:
                load.wait_until_told(fault.felt, PATIENCE_S)
        mended_at = time.monotonic()
        load.wait_for(around[1], PATIENCE_S)
        load.drain(PATIENCE_S)
        recovered_s = time.monotonic() - mended_at
    verdict = check(world.database_url, load.record)
    complaints = tuple(dict.fromkeys(load.record.wrong)) + _log_errors(fault, world, logged)
    return Episode(fault.name, world.name, verdict, recovered_s, load.record.answers, complaints)


def _clock(rng: Random) -> Callable[[], float]:
    """Return the agents' time; a batch may carry a time an hour in the past."""
    return lambda: time.time() - rng.choice([0.0, 3600.0])


def _log_errors(fault: Fault, world: FaultEnvironment, logged: int) -> tuple[str, ...]:
    """Report what is wrong with the server's log: it doesn't mention the fault, or it says too
    much.
    """
    problems = []
    if fault.says is not None and not _appears(fault.says, world, logged):
        problems.append(f"the log does not say {fault.says!r}")
    log = world.log_since(logged)
    if "Traceback" in log:
        problems.append(f"the log shows a traceback: {log[log.index('Traceback') :]}")
    return tuple(problems)


def _appears(pattern: str, world: FaultEnvironment, logged: int) -> bool:
    """Check that the log mentions the fault, if need be after a moment."""
    until = time.monotonic() + LOG_PATIENCE_S
    while re.search(pattern, world.log_since(logged)) is None:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
