"""Times of channels: quiet hours and digests, on days with and without a change of clocks."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from memagent_server.alerts.schedules import MAX_LATE_S, due_digest, newest_time, quiet_until
from memagent_server.schemas.schedules import WEEKDAYS, ChannelSchedule

BERLIN = "Europe/Berlin"
NIGHT = ChannelSchedule(time_zone=BERLIN, quiet_from="22:00", quiet_to="07:00")


def at(text: str, zone: str = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("now", "end"),
    [
        ("2026-11-28 21:59", None),
        ("2026-11-28 22:00", "2026-11-29 07:00"),
        ("2026-11-29 03:00", "2026-11-29 07:00"),
        ("2026-11-29 07:00", None),
        ("2026-03-29 01:30", "2026-03-29 07:00"),
        ("2026-10-25 01:30", "2026-10-25 07:00"),
    ],
)
def test_quiet_hours_end_in_their_zone(now, end):
    expected = at(end) if end else None
    assert quiet_until(NIGHT, "warning", at(now)) == expected
    assert quiet_until(NIGHT, "critical", at(now)) is None


@pytest.mark.parametrize(
    ("now", "end"),
    [
        ("2026-11-27 21:59", None),  # a Friday
        ("2026-11-27 22:00", "2026-11-30 07:00"),
        ("2026-11-28 12:00", "2026-11-30 07:00"),
        ("2026-11-29 23:59", "2026-11-30 07:00"),
        ("2026-11-30 06:59", "2026-11-30 07:00"),
        ("2026-11-30 07:00", None),
        ("2026-03-28 12:00", "2026-03-30 07:00"),
        ("2026-10-24 12:00", "2026-10-26 07:00"),
    ],
)
def test_quiet_days_end_after_the_night_that_follows(now, end):
    weekend = replace(NIGHT, quiet_days=("saturday", "sunday"))
    assert quiet_until(weekend, "warning", at(now)) == (at(end) if end else None)
    assert quiet_until(weekend, "critical", at(now)) is None


def test_a_quiet_day_without_hours_ends_at_midnight_of_its_zone():
    sunday = ChannelSchedule(time_zone=BERLIN, quiet_days=("sunday",))
    for now in ("2026-11-29 00:00", "2026-11-29 23:59"):
        assert quiet_until(sunday, "warning", at(now)) == at("2026-11-30 00:00")
    assert quiet_until(sunday, "warning", at("2026-11-28 23:59")) is None


def test_six_quiet_days_end_on_the_seventh():
    days = tuple(day for day in WEEKDAYS if day != "wednesday")
    schedule = replace(NIGHT, quiet_days=days)
    assert quiet_until(schedule, "warning", at("2026-11-26 00:00")) == at("2026-12-02 07:00")


def test_quiet_hours_within_a_day_and_none():
    lunch = ChannelSchedule(quiet_from="12:00", quiet_to="13:00")
    assert quiet_until(lunch, "warning", at("2026-11-28 12:30", "UTC")) == at(
        "2026-11-28 13:00", "UTC"
    )
    assert quiet_until(lunch, "warning", at("2026-11-28 13:30", "UTC")) is None
    assert quiet_until(ChannelSchedule(), "warning", at("2026-11-28 12:30", "UTC")) is None


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25", "2026-11-28"])
def test_the_newest_time_is_found_on_any_day(day):
    for hour in range(24):
        now = at(f"{day} {hour:02}:30")
        found = newest_time(BERLIN, "02:30", now)
        assert now - 26 * 3600 <= found <= now


def test_a_digest_is_due_once_a_day_and_not_much_later():
    daily = ChannelSchedule(time_zone=BERLIN, daily=True, digest_at="08:00")
    eight = at("2026-11-28 08:00")
    assert due_digest(daily, "daily", eight - 86400, eight - 1) is None
    assert due_digest(daily, "daily", eight - 86400, eight) == eight
    assert due_digest(daily, "daily", eight, eight + 60) is None
    assert due_digest(daily, "daily", eight - 86400, eight + MAX_LATE_S) is None
    assert due_digest(daily, "waste", 0.0, eight) is None


def test_a_report_of_unused_memory_is_due_on_its_day():
    weekly = ChannelSchedule(time_zone=BERLIN, waste_day="monday", digest_at="08:00")
    monday = at("2026-11-30 08:00")
    assert due_digest(weekly, "waste", monday - 7 * 86400, monday - 60) is None
    assert due_digest(weekly, "waste", monday - 7 * 86400, monday + 60) == monday
    assert due_digest(weekly, "waste", monday, monday + 86400) is None
    assert due_digest(weekly, "daily", 0.0, monday + 60) is None
