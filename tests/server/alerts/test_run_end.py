"""The end of a run whose warnings were averted: one death has one first warning."""

from __future__ import annotations

import pytest
from msgspec.structs import asdict
from sqlalchemy import select

from memagent.forecast import Forecast
from memagent_server.alerts.incident_updates import IncidentTransaction
from memagent_server.alerts.rule_input import RuleResult
from memagent_server.alerts.state import RuleState
from memagent_server.alerts.stream_state import AlertChange
from memagent_server.notify.message_data import load_message
from memagent_server.notify.message_text import plain_text
from memagent_server.store.alert_accuracy import scoreboard
from memagent_server.store.models import NotificationRow, StreamRow
from memagent_server.web import incident_views, view_models
from tests.server.web.schema_examples import LEAK


def leak(step: int) -> float:
    return 1 + step / 1000


def leak_with_a_pause(step: int) -> float:
    """Stand still from step 200 to 700."""
    return 1 + (min(step, 200) + max(0, step - 700)) / 1000


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


def _warned_run(bench, gib, *, again_since: int | None = None) -> None:
    """Feed a run that grows far below its limit, and alerts like those of one that is near."""
    bench.start()
    bench.feed(0, 1267, gib, seq=0)
    bench.worker.evaluate()
    _warn(bench, 193, since=12)
    result = RuleResult("ok", "leak")
    _apply(bench, AlertChange("oom_forecast", RuleState("averted", "critical"), result, 464))
    if again_since is not None:
        _warn(bench, 740, since=again_since)


def _warn(bench, step: int, *, since: int) -> None:
    forecast = Forecast(
        step=step, level="critical", cause="leak", eta_step=1300.0, growing_since_step=since
    )
    result = RuleResult("critical", "leak", asdict(forecast))
    _apply(bench, AlertChange("oom_forecast", RuleState("firing", "critical"), result, step))


def _die(bench, step: int) -> None:
    bench.now += 1000
    bench.finish("oom", step)
    bench.worker.evaluate()


def _apply(bench, change: AlertChange) -> None:
    bench.now += 100
    with bench.database.write() as session:
        stream_id = session.scalar(select(StreamRow.id))
        incidents = IncidentTransaction(session, ["webhook"], bench.now)
        incidents.apply("r", stream_id, change)
        incidents.flush()


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
