"""What of a script's alerts leaves the process: one of a title a minute, in bounded size."""

from __future__ import annotations

import pytest

from memagent.errors import SettingError
from memagent.sampling.script_alerts import MAX_TITLES, WINDOW_S, ScriptAlerts
from memagent.wire.messages import MAX_ALERT_TEXT, MAX_ALERT_TITLE, Event


class Reports:
    """Alerts with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[Event] = []
        self._alerts = ScriptAlerts(self.events.append, lambda: self.now)

    def report(self, title="Loss is NaN", text="", level="warning", step=7) -> Event | None:
        return self._alerts.report(step, title, text, level)


@pytest.fixture
def reports() -> Reports:
    return Reports()


def test_an_alert_becomes_an_event(reports):
    reports.report("Loss is NaN", "at lr 1e-3", "critical")
    (event,) = reports.events
    assert (event.kind, event.step) == ("alert", 7)
    assert event.data == {
        "title": "Loss is NaN", "text": "at lr 1e-3", "level": "critical", "count": 1
    }  # fmt: skip


def test_a_title_is_sent_once_a_minute_with_the_number_of_repetitions(reports):
    for _ in range(10_000):
        reports.report()
    assert len(reports.events) == 1
    reports.now = WINDOW_S
    reports.report()
    assert [event.data["count"] for event in reports.events] == [1, 10_000]


def test_a_more_severe_alert_is_sent_at_once(reports):
    reports.report()
    reports.report(level="critical")
    assert [event.data["level"] for event in reports.events] == ["warning", "critical"]


def test_a_title_for_each_step_is_refused_in_one_sentence(reports):
    for step in range(MAX_TITLES):
        reports.report(f"bad step {step}")
    with pytest.raises(SettingError, match=f"more than {MAX_TITLES} titles within a minute"):
        reports.report("bad step 1000")
    assert len(reports.events) == MAX_TITLES
    reports.now = WINDOW_S
    reports.report("bad step 1001")
    assert len(reports.events) == MAX_TITLES + 1


def test_long_texts_are_cut_and_secrets_are_masked(reports):
    key = "hf_" + "a" * 40
    reports.report("t" * 10_000_000, "x" * (MAX_ALERT_TEXT - 8) + f" {key}" + "y" * 10_000_000)
    data = reports.events[0].data
    assert len(data["title"]) == MAX_ALERT_TITLE and len(data["text"]) <= MAX_ALERT_TEXT
    assert "hf_" not in data["text"] and "***" in data["text"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"title": 7}, "title=7"),
        ({"title": "  "}, "title='  '"),
        ({"text": None}, "text=None"),
        ({"level": "fatal"}, "level='fatal': use note, warning, critical"),
    ],
)
def test_a_wrong_argument_is_named(reports, arguments, named):
    with pytest.raises(SettingError, match=named):
        reports.report(**arguments)
    assert reports.events == []
