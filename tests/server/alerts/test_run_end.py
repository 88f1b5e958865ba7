"""The end of a run whose warnings were averted: one death has one first warning."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from memagent.wire.messages import Batch, Device, Event, Finish, RunStart
from memagent_server.notify.message_data import load_message
from memagent_server.notify.message_text import plain_text
from memagent_server.store.alert_accuracy import scoreboard
from memagent_server.store.models import NotificationRow
from memagent_server.store.runs import finish_run, start_run
from memagent_server.store.samples import add_batch
from memagent_server.web import incident_views, view_models
from tests.server.alerts.conftest import LIMIT
from tests.server.web.schema_examples import LEAK


def leak(step: int) -> float:
    """End at 85 % of the limit: as full as a device is at an error, but far from it for long."""
    return 32.8 + step / 1000


def leak_with_a_pause(step: int) -> float:
    """Stand still from step 200 to 700."""
    return 32.8 + (min(step, 200) + max(0, step - 700)) / 1000


def test_a_leak_that_was_averted_too_early_has_one_incident_and_one_lead_time(bench):
    """Its second warning is of growth that began before the first, and never ended."""
    _warned_run(bench, leak, again_since=12)
    (incident,) = bench.incidents()
    assert (incident.state, len(incident.alerts)) == ("firing", 2)
    _die(bench, 1266)
    (incident,) = bench.incidents()
    assert incident_views.outcome(incident) == "warned 1,074 steps before"
    text = "ran out of memory in step 1,267, 1,074 steps after the warning at step 193"
    assert incident.alerts[-1].summary == text
    assert view_models.warning_steps([incident], LEAK) == [193]
    assert "First warning at step 193, 1,074 steps" in _last_message(bench)
    assert _ratings(bench) == (1, 1, 0, 0, 1074)


def test_a_death_of_growth_whose_warning_was_averted_is_rated_as_warned(bench):
    _warned_run(bench, leak)
    _die(bench, 1266)
    (incident,) = bench.incidents()
    assert (incident.rule, incident.state) == ("oom_forecast", "oom")
    assert _ratings(bench) == (1, 1, 0, 0, 1074)


@pytest.mark.parametrize(
    ("gib", "again_since"), [(leak, 700), (leak_with_a_pause, 12), (leak_with_a_pause, None)]
)
def test_growth_that_ended_in_between_was_averted(bench, gib, again_since):
    _warned_run(bench, gib, again_since=again_since)
    _die(bench, 1266)
    assert len(bench.incidents()) == 2
    assert _ratings(bench)[:3] == ((2, 1, 1) if again_since else (1, 0, 1))


def far_below_the_limit(step: int) -> float:
    return leak(step) - 31


def test_a_death_far_below_the_limit_is_none_of_an_averted_warning(bench):
    _warned_run(bench, far_below_the_limit)
    _die(bench, 1266)
    assert [item.state for item in bench.incidents()] == ["oom", "averted"]


@pytest.mark.parametrize(("dead", "states"), [(0, ["oom"]), (1, ["oom", "averted"])])
def test_a_death_is_that_of_the_rank_that_ran_out_of_memory(bench, dead, states):
    _warned_run(bench, leak)
    device = Device(id="host", kind="host", name="host", limit_bytes=LIMIT)
    with bench.database.write() as session:
        message = RunStart(run_id="r", rank=1, world_size=2, devices=[device])
        start_run(session, message, bench.now)
        event = Event(kind="oom", step=1266, time_s=bench.now, data={})
        add_batch(session, "r", Batch(rank=dead, seq=9, events=[event]), bench.now)
        finish_run(session, "r", Finish(status="oom", step=1266, rank=1), bench.now)
    _die(bench, 1266)
    assert [item.state for item in bench.incidents()] == states


def _warned_run(bench, gib, *, again_since: int | None = None) -> None:
    """Feed a run that grows too slowly for a page, and alerts like those of one that is near."""
    bench.start()
    bench.feed(0, 1267, gib, seq=0)
    bench.worker.evaluate()
    bench.warn(193, since=12)
    bench.avert(464)
    if again_since is not None:
        bench.warn(740, since=again_since)


def _die(bench, step: int) -> None:
    bench.now += 1000
    bench.finish("oom", step)
    bench.worker.evaluate()


def _ratings(bench) -> tuple[int, ...]:
    """Return warnings, those that came true and were averted, deaths unforeseen, and the lead."""
    with bench.database.read() as session:
        score = scoreboard(session, now=bench.now, days=10_000).total
    return score.warnings, score.came_true, score.averted, score.unforeseen, score.lead_steps


def _last_message(bench) -> str:
    with bench.database.read() as session:
        newest = select(NotificationRow).order_by(NotificationRow.id.desc()).limit(1)
        message = load_message(session, session.scalars(newest).one(), "", bench.now)
    return plain_text(message)
