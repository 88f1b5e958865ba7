"""Failures that runs share: their fingerprints, states and counts, on both databases."""

from __future__ import annotations

import pytest

from memagent.wire.messages import Batch, Event, Finish, RunStart, SnapshotMessage, Suspect
from memagent_server.alerts.summaries import day_of, regression, seen_in
from memagent_server.store.failures import (
    MAX_TITLE,
    failures_by_run,
    find_failure,
    list_failures,
    reopen,
    resolve,
)
from memagent_server.store.ranks import OOM_KILLER_TEXT
from memagent_server.store.runs import finish_run, get_run, lock_run, start_run
from memagent_server.store.samples import add_batch
from memagent_server.store.snapshots import add_snapshot

DAY = 86_400.0
LEAK = {"forecast": {"cause": "leak"}, "phase": "forward"}
SUSPECT = Suspect(
    kind="list",
    holder="history",
    file="/home/ann/train.py",
    line=42,
    confidence=0.9,
    source=["for batch in loader:", "    history.append(loss)"],
    source_first_line=41,
)


@pytest.fixture
def fail(database):
    """fail(run_id): a run that ended, and its fingerprint."""

    def fail(run_id, status="oom", *, at=100.0, began=None, error=None, data=None, suspects=(),
             user="ann", project="vision", directory="/home/ann"):  # fmt: skip
        start = RunStart(
            run_id=run_id, project=project, user=user, environment={"directory": directory},
            started_at=at - 10 if began is None else began,
        )  # fmt: skip
        with database.write() as session:
            start_run(session, start, at - 10)
            events = [Event(kind="oom", step=1, data=data)] if data is not None else []
            add_batch(session, run_id, Batch(seq=0, events=events), at - 1)
            if suspects:
                message = SnapshotMessage(method="census", seq=1, suspects=list(suspects))
                add_snapshot(session, run_id, message, at - 1)
            finish_run(session, run_id, Finish(status=status, error=error, finished_at=at), at)
        with database.read() as session:
            return get_run(session, run_id).failure

    return fail


def read(database, fingerprint):
    with database.read() as session:
        return find_failure(session, fingerprint)


def change(database, fingerprint, action, **arguments):
    with database.write() as session:
        action(session, find_failure(session, fingerprint), **arguments)


def test_1_a_run_has_a_failure_from_its_end_until_it_runs_again(database, fail):
    assert fail("r", "failed", error="ValueError: no")
    with database.write() as session:
        start_run(session, RunStart(run_id="r", attempt=1), 200.0)
        run = lock_run(session, "r")
        assert (run.status, run.failure, run.failure_title) == ("running", None, None)
    for status in ("completed", "stopped"):
        assert fail(status, status) is None


def test_2_the_same_cause_line_and_phase_are_one_failure(database, fail):
    first = fail("a", data=LEAK, suspects=[SUSPECT])
    moved = Suspect(**{**SUSPECT.to_dict(), "line": 52, "source_first_line": 51})
    assert fail("b", data=LEAK, suspects=[moved]) == first
    elsewhere = Suspect(**{**SUSPECT.to_dict(), "file": "/tmp/bob/train.py"})
    assert fail("c", data=LEAK, suspects=[elsewhere], directory="/tmp/bob") == first
    assert read(database, first).title == "Out of memory at train.py:52 in forward: leak"
    other_line = Suspect(**{**SUSPECT.to_dict(), "line": 41})
    others = [
        fail("d", data=LEAK, suspects=[other_line]),
        fail("e", data={**LEAK, "phase": "backward"}, suspects=[SUSPECT]),
        fail("f", data={**LEAK, "forecast": {"cause": "fragmentation"}}, suspects=[SUSPECT]),
        fail("g", data=LEAK, suspects=[SUSPECT], project="nlp"),
        fail("h", data=LEAK),
        fail("i"),
    ]
    assert len({first, *others}) == 7 and None not in others


def test_2_without_a_leak_there_is_no_line(database, fail):
    data = {"forecast": {"cause": "batch_size"}, "phase": "backward"}
    first = fail("a", data=data, suspects=[SUSPECT])
    assert fail("b", data=data) == first
    assert read(database, first).title == "Out of memory in backward: batch size"


@pytest.mark.parametrize("data", [{"forecast": 3, "phase": []}, {"forecast": {"cause": {}}}])
def test_2_an_ill_typed_event_gives_a_failure_too(database, fail, data):
    assert read(database, fail("r", data=data)).title == "Out of memory"


def test_3_errors_are_compared_without_numbers(database, fail):
    first = fail("a", "failed", error="IndexError: index 7 of 0x7f3a is out of 3.5\nmore")
    assert fail("b", "failed", error="IndexError: index 81 of 0x11 is out of 9") == first
    assert fail("c", "failed", error="KeyError: index 7 of 0x7f3a is out of 3.5") != first
    assert "IndexError: index 81" in read(database, first).title


def test_4_a_lost_run_has_a_failure_if_the_kernel_killed_it(fail):
    assert fail("a", "lost_contact") is None
    assert fail("b", "lost_contact", error=f"{OOM_KILLER_TEXT}: 9 of 10") is not None


def test_5_it_regresses_if_a_launch_began_after_the_resolution(database, fail):
    failure = fail("a", "failed", at=100.0, error="x")
    assert read(database, failure).state == "open"
    change(database, failure, resolve, by="bob", now=200.0)
    resolved = read(database, failure)
    assert (resolved.state, resolved.resolved_by) == ("resolved", "bob")
    fail("b", "failed", at=300.0, began=150.0, error="x")
    assert read(database, failure).state == "resolved"
    fail("c", "failed", at=400.0, began=250.0, error="x")
    assert read(database, failure).state == "regressed"
    change(database, failure, resolve, by="ann", now=500.0)
    assert (read(database, failure).state, read(database, failure).resolved_by) == (
        "resolved",
        "ann",
    )
    change(database, failure, reopen)
    assert read(database, failure).state == "open"


def test_runs_and_people_are_counted(database, fail):
    for number, user in enumerate(("ann", "bob", "ann", None)):
        failure = fail(f"r{number}", "failed", at=100.0 + number * DAY, error="x", user=user)
    other = fail("other", "failed", at=50.0, error="y", project="nlp")
    seen = read(database, failure)
    assert (seen.runs, seen.users) == (4, 2)
    assert seen.first_seen_at == "1970-01-01T00:01:40.000Z"
    assert seen_in(seen, 100.0 + 3 * DAY) == "Seen in 4 runs of 2 people since Thursday"
    assert seen_in(seen, 100.0 + 30 * DAY) == "Seen in 4 runs of 2 people since 1970-01-01"
    assert seen_in(read(database, other), 100.0) == "First occurrence"
    with database.read() as session:
        assert [item.id for item in list_failures(session)] == [failure, other]
        assert [item.id for item in list_failures(session, project="nlp")] == [other]
        assert list_failures(session, state="resolved") == []
        by_run = failures_by_run(session, ["r0", "other", "nobody"])
    assert {run: item.id for run, item in by_run.items()} == {"r0": failure, "other": other}


def test_a_regression_is_described_with_day_and_person(database, fail):
    failure = fail("a", "failed", at=100.0, error="x")
    assert regression(read(database, failure), 0.0) is None
    change(database, failure, resolve, by="ann", now=DAY)
    fail("b", "failed", at=3 * DAY, began=2 * DAY, error="x")
    text = regression(read(database, failure), 3 * DAY)
    assert text == "resolved by ann on Friday, and back in a run that began later"
    assert day_of("2026-11-24T00:00:00.000Z", 0.0) == "2026-11-24"


def test_the_longest_names_and_titles_fit_the_index(database, fail):
    signs = [chr(0x1F300 + number % 500) for number in range(200)]
    name, error = "".join(signs), "".join(reversed(signs)) * 2
    failure = read(database, fail("r", "failed", error=error, project=name, user=name))
    assert (failure.project, failure.title) == (name, error[:MAX_TITLE])
