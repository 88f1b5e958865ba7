"""Good news: first step and completion, only for projects that have asked, and once."""

from __future__ import annotations

import pytest

from memagent_server.alerts.milestones import CHECK_EVERY_S
from memagent_server.schemas.routing import Route
from memagent_server.store.routes import replace_routes
from memagent_server.store.rules import put_rule


def flat(step: int) -> float:
    return 20.0


def switch_on(bench, *rules: str, project: str = "*", tells: str = "warning") -> None:
    with bench.database.write() as session:
        for rule in rules:
            put_rule(
                session, project=project, rule=rule, is_on=True, tells=tells, thresholds={},
                by=None, now=bench.now,
            )  # fmt: skip


def evaluate(bench) -> None:
    for _ in range(2):
        bench.now += CHECK_EVERY_S
        bench.worker.evaluate()


def run_to_its_end(bench, run_id: str = "r", **facts) -> None:
    bench.start(run_id, **facts)
    bench.feed(1, 20, flat, seq=0, run_id=run_id)
    evaluate(bench)
    bench.finish("completed", 20, run_id)
    evaluate(bench)


def test_nobody_is_told_by_default(bench):
    run_to_its_end(bench)
    assert bench.notified_states() == [] and bench.notes("finished") == []


def test_a_first_step_and_a_completed_run_are_told_once(bench):
    switch_on(bench, "first_step", "finished")
    run_to_its_end(bench)
    evaluate(bench)
    assert bench.notified_states() == ["finished", "finished"]
    (done,) = bench.notes("finished")
    (first,) = bench.notes("first_step")
    assert done.summary.startswith("completed after 20 steps in") and "20.00 GiB" in done.summary
    assert first.summary == "has taken its first step: 20.00 GiB of 40.00 GiB used"
    assert (done.state, done.closed_at is not None) == ("finished", True)


@pytest.mark.parametrize("status", ["failed", "stopped", "oom"])
def test_a_run_that_ends_otherwise_has_not_finished(bench, status):
    switch_on(bench, "finished")
    bench.start()
    bench.feed(1, 20, flat, seq=0)
    bench.finish(status, 20)
    evaluate(bench)
    assert bench.notes("finished") == []


def test_what_came_before_the_switch_is_no_news(bench):
    run_to_its_end(bench)
    bench.now += 60
    switch_on(bench, "first_step", "finished")
    evaluate(bench)
    assert bench.notified_states() == []


def test_a_replayed_run_is_no_news(bench):
    switch_on(bench, "first_step", "finished")
    bench.live = False
    run_to_its_end(bench)
    assert bench.notified_states() == []


def test_only_projects_that_asked_are_told_and_by_their_route(bench):
    switch_on(bench, "finished", project="vision")
    with bench.database.write() as session:
        replace_routes(
            session, [Route(name="news", rules=("finished",), channels=("slack_webhook",))]
        )
    run_to_its_end(bench, "a", project="vision")
    run_to_its_end(bench, "b", project="nlp")
    assert bench.notified_states("slack_webhook") == ["finished"]
    assert bench.notified_states("webhook") == []


def test_never_lists_them_without_a_message(bench):
    switch_on(bench, "finished", tells="never")
    run_to_its_end(bench)
    assert bench.notified_states() == [] and len(bench.notes("finished")) == 1
