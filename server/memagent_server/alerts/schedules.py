"""Times of channels: the end of quiet hours and days, and digests that are due. Pure.

Local times are of the schedule's zone. One that a change of clocks skips counts as if the clocks
hadn't changed; one that comes twice counts the first time.
"""

from __future__ import annotations

from datetime import datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from memagent.units import DAY_S
from memagent_server.schemas.schedules import WEEKDAYS, ChannelSchedule, DigestKind

MAX_LATE_S = 6 * 3600.0
"""A digest of a server that was down is sent up to this late; later, the next one does."""
PERIODS_S: dict[DigestKind, float] = {"daily": DAY_S, "waste": 7 * DAY_S}


def quiet_until(schedule: ChannelSchedule, severity: str, now: float) -> float | None:
    """Return when a notification may be sent: the end of the quiet time, or None for at once."""
    if severity == "critical":
        return None
    end = now
    # a night leads to a quiet day, and that to the next night: six days, each after a night
    for _ in range(2 * len(WEEKDAYS)):
        later = _end_of_hours(schedule, end) or _end_of_day(schedule, end)
        if later is None:
            break
        end = later
    return end if end > now else None


def _end_of_hours(schedule: ChannelSchedule, now: float) -> float | None:
    if schedule.quiet_from is None or schedule.quiet_to is None:
        return None
    start = newest_time(schedule.time_zone, schedule.quiet_from, now)
    # quiet hours may end on the next day, so the end is sought from there backwards
    end = newest_time(schedule.time_zone, schedule.quiet_to, start + DAY_S)
    return end if now < end else None


def _end_of_day(schedule: ChannelSchedule, now: float) -> float | None:
    place = _zone(schedule.time_zone)
    day = datetime.fromtimestamp(now, place).date()
    if WEEKDAYS[day.weekday()] not in schedule.quiet_days:
        return None
    return datetime.combine(day + timedelta(days=1), time(), place).timestamp()


def due_digest(
    schedule: ChannelSchedule, kind: DigestKind, done_until: float, now: float
) -> float | None:
    """Return the end of the period of a digest that is due, None if none is.

    `done_until` is the end of the last one, or when the schedule began.
    """
    if not (schedule.daily if kind == "daily" else schedule.waste_day):
        return None
    weekday = schedule.waste_day if kind == "waste" else None
    end = newest_time(schedule.time_zone, schedule.digest_at, now, weekday)
    return end if done_until < end and now - end < MAX_LATE_S else None


def newest_time(zone: str, clock: str, now: float, weekday: str | None = None) -> float:
    """Return the newest time up to `now` at which a clock of the zone showed `clock`."""
    place = _zone(zone)
    day = datetime.fromtimestamp(now, place).date() + timedelta(days=1)
    wanted = time.fromisoformat(clock)
    # nine days: a week, the day ahead, and a day that a change of clocks may add
    for _ in range(9):
        at = datetime.combine(day, wanted, place).timestamp()
        if at <= now and (weekday is None or WEEKDAYS[day.weekday()] == weekday):
            return at
        day -= timedelta(days=1)
    raise AssertionError(f"no {weekday} in nine days")


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
