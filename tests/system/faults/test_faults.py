"""Every fault of `benchmarks.reliability` once, in its short form, on one server per database.

After each fault every acknowledged sample is stored once and nothing else is, the rest is
delivered, no agent gets a 500 or gives up a batch, and the log names the fault without a traceback.
The longest faults run with `make test-long`.
"""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.reliability.check import samples_of
from benchmarks.reliability.environment import FaultEnvironment
from benchmarks.reliability.episode import run_episode
from benchmarks.reliability.faults import FAULTS
from benchmarks.reliability.load import shortened_delays
from benchmarks.reliability.malformed import RUN, besiege

BODIES = 200
SHORT = {
    "sqlite": (
        "server killed",
        "web process killed",
        "agents' connections cut",
        "disk full",
        "database read-only",
        "server's clock jumps",
    ),
    "postgresql": (
        "server killed",
        "PostgreSQL backend killed",
        "PostgreSQL at a fresh address",
        "PostgreSQL's connections cut",
        "disk full",
        "database read-only",
    ),
}
MARKS = {"sqlite": [], "postgresql": [pytest.mark.postgres]}


def marks_of(database):
    return [*MARKS[database], pytest.mark.slow, pytest.mark.xdist_group(f"faults-{database}")]


def cases():
    for database, short in SHORT.items():
        for fault in FAULTS:
            if database in fault.databases:
                long = [] if fault.name in short else [pytest.mark.long]
                name = f"{database}: {fault.name}"
                yield pytest.param(database, fault, marks=[*marks_of(database), *long], id=name)


@pytest.fixture(scope="module")
def world(request):
    """A server over a database of its own, in the hands of the faults."""
    programs = (
        request.getfixturevalue("postgres_programs") if request.param == "postgresql" else None
    )
    with shortened_delays(), FaultEnvironment(Random(7), programs) as world:
        yield world


@pytest.mark.parametrize(("world", "fault"), list(cases()), indirect=["world"], scope="module")
def test_it_loses_nothing_duplicates_nothing_and_reports_what_happened(world, fault):
    rng = Random(fault.name)
    episode = run_episode(world, fault, f"r{rng.getrandbits(40):x}", rng, is_short=True)
    assert episode.complaints == ()
    assert episode.verdict.is_right, episode.verdict
    assert episode.verdict.acknowledged == episode.verdict.sent == episode.verdict.found > 0


@pytest.mark.parametrize(
    "world", [pytest.param("sqlite", marks=marks_of("sqlite"))], indirect=True, scope="module"
)
def test_malformed_bodies_are_refused_and_not_stored(world):
    siege = besiege(world.server.url, BODIES, world.web_processes)
    assert siege.statuses.total() >= BODIES
    assert {400, 415, 422} <= siege.statuses.keys()
    assert samples_of(world.database_url, RUN) == sum(siege.accepted.values())
    assert "Traceback" not in world.server.errors
