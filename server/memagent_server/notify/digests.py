"""Digests of one channel: what happened in a day, and a week's unused GPU memory.

1. A digest is due by the channel's schedule (`alerts/schedules.py`).
2. An attempt is counted in the database before the message leaves: a crash sends it again.
3. Failures are retried with growing delays. After MAX_ATTEMPTS, or if the channel says never, the
   page shows the reason, and the next digest is tried at its time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from memagent.units import format_bytes
from memagent_server.alerts.routing import fits_any, projects_of
from memagent_server.alerts.schedules import PERIODS_S, due_digest
from memagent_server.notify.channel import AlertMessage, Channel, DeliveryFailedError, mask
from memagent_server.schemas.runs import Waste
from memagent_server.schemas.schedules import ChannelSchedule, DigestKind
from memagent_server.settings import GpuPrices
from memagent_server.store.engine import Database, Session
from memagent_server.store.models import DigestRow
from memagent_server.store.routes import list_routes
from memagent_server.store.schedules import (
    DayReport,
    begin_digest,
    day_report,
    digests_of,
    end_digest,
    get_schedule,
    projects_between,
)
from memagent_server.store.waste import WasteSelection, waste

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 8
FIRST_RETRY_S = 120.0
"""Longer than any exchange with a channel takes, so that no two workers send a digest at once."""
CHECK_EVERY_S = 20.0
WASTE_ROWS = 10


class DigestSender:
    """The digests of one channel. `clock` returns Unix time."""

    def __init__(
        self,
        database: Database,
        name: str,
        channel: Channel,
        public_url: str,
        clock: Callable[[], float],
        prices: GpuPrices,
    ) -> None:
        self._database = database
        self._name = name
        self._channel = channel
        self._public_url = public_url
        self._clock = clock
        self._prices = prices
        self._checked_at = float("-inf")

    def turn(self) -> bool:
        """Send the next digest that is due; return whether there was one."""
        now = self._clock()
        # a negative age means that the wall clock was set back
        if 0.0 <= now - self._checked_at < CHECK_EVERY_S:
            return False
        with self._database.read() as session:
            schedule = get_schedule(session, self._name)
            digests = digests_of(session, self._name) if schedule is not None else []
        for digest in digests:
            assert schedule is not None
            kind: DigestKind = "waste" if digest.kind == "waste" else "daily"
            until = due_digest(schedule, kind, digest.done_until, now)
            if until is not None and digest.next_attempt_at <= now:
                return self._send(digest, kind, schedule, until, now)
        self._checked_at = now
        return False

    def _send(
        self,
        digest: DigestRow,
        kind: DigestKind,
        schedule: ChannelSchedule,
        until: float,
        now: float,
    ) -> bool:
        # written before the message leaves: it's the lease of this attempt as well
        retry_at = now + FIRST_RETRY_S * 2**digest.attempts
        with self._database.write() as session:
            if not begin_digest(session, digest, retry_at):
                return False
        error, is_over = None, True
        try:
            with self._database.read() as session:
                message = self._message(session, kind, schedule, until)
            self._channel.send(message)
        except DeliveryFailedError as failure:
            error = mask(str(failure), self._channel.secrets)
            is_over = failure.is_final or digest.attempts + 1 >= MAX_ATTEMPTS
            log.warning("the digest of %s was not sent: %s", self._name, error)
        with self._database.write() as session:
            done_until = until if is_over else None
            end_digest(session, digest, until=done_until, error=error, now=self._clock())
        return True

    def _message(
        self, session: Session, kind: DigestKind, schedule: ChannelSchedule, until: float
    ) -> AlertMessage:
        since = until - PERIODS_S[kind]
        if not schedule.projects:
            projects = projects_of(self._name, list_routes(session))
            schedule = msgspec.structs.replace(schedule, projects=projects)
        names = _projects(session, schedule, since, until)
        if kind == "daily":
            report = day_report(session, since, until, names)
            return digest_message(
                f"The last day: {_headline(report)}",
                _day_lines(report),
                f"{self._public_url}/",
                f"digest:{self._name}:{until:.0f}",
                schedule,
                until,
            )
        # without a project, all of them in one report
        reports = [
            waste(session, WasteSelection(since, until, name, limit=WASTE_ROWS), self._prices)
            for name in ([None] if names is None else names)
        ]
        title, lines = waste_lines(reports)
        url = f"{self._public_url}/waste"
        return digest_message(title, lines, url, f"waste:{self._name}:{until:.0f}", schedule, until)


def digest_message(
    title: str, lines: Sequence[str], url: str, key: str, schedule: ChannelSchedule, at: float
) -> AlertMessage:
    """Return a message that belongs to no run and no alert."""
    return AlertMessage(
        alert_id=0,
        transition_id=0,
        topic=key,
        dedup_key=key,
        rule="digest",
        severity="note",
        from_state="ok",
        to_state="digest",
        reason=f"the digest of {schedule.digest_at} {schedule.time_zone}",
        at=at,
        step=0,
        first_step=0,
        opened_at=at,
        facts={"lines": list(lines)},
        run_id="digest",
        run_name="memagent",
        project=", ".join(schedule.projects) or "all projects",
        run_url=url,
        alert_url=url,
        summary=title,
    )


def waste_lines(reports: Sequence[Waste]) -> tuple[str, list[str]]:
    """Return the title and the lines of a week's unused memory: sums of all, and the worst rows."""
    totals = [report.total for report in reports]
    available = sum(total.available_gib_hours for total in totals)
    unused = sum(total.unused_gib_hours for total in totals)
    hours = sum(total.gpu_hours for total in totals)
    rows = sorted(
        (row for report in reports for row in report.rows),
        key=lambda row: row.unused_gib_hours,
        reverse=True,
    )
    if not available:
        return "The last week: no run used a GPU", []
    title = f"The last week: {unused / available:.0%} of the GPU memory was unused"
    lines = [f"{unused:,.0f} of {available:,.0f} GiB-hours in {hours:,.0f} GPU-hours"]
    lines += [
        f"{row.user or '–'} in {row.project}, {row.card}: {row.unused_gib_hours:,.0f} GiB-hours "
        f"unused ({row.unused_gib_hours / row.available_gib_hours:.0%} of "
        f"{row.gpu_hours:,.0f} GPU-hours), highest need {format_bytes(row.peak_bytes)}"
        + (f"; {row.smallest_card} has room for it" if row.smallest_card else "")
        for row in rows[:WASTE_ROWS]
        if row.available_gib_hours
    ]
    # a mail names the worst; the page has the rest
    more = len(rows) + sum(report.left_out for report in reports) - WASTE_ROWS
    return title, [*lines, *([f"and {_count(more, 'more row')}"] if more > 0 else [])]


def _projects(
    session: Session, schedule: ChannelSchedule, since: float, until: float
) -> list[str] | None:
    """Return the projects of a schedule, None for all."""
    if not schedule.projects:
        return None
    # only an asterisk could match many: the database knows which projects there are
    names = projects_between(session, since, until)
    return [name for name in names if fits_any([name], schedule.projects)]


def _headline(report: DayReport) -> str:
    dead = sum(report.ends.get(status, 0) for status in ("oom", "lost_contact", "failed"))
    return (
        f"{_count(report.started, 'run')} started, {report.ends.get('completed', 0):,} completed, "
        f"{dead:,} died, {report.running:,} running"
    )


def _day_lines(report: DayReport) -> list[str]:
    lines = [f"Ended: {_listed(report.ends)}"] if report.ends else []
    lines += [f"Incidents: {_listed(report.incidents)}"] if report.incidents else ["No incidents"]
    for name, status, failure in report.deaths:
        reason = f": {failure}" if failure else ""
        lines.append(f"{name} {'failed' if status == 'failed' else _words(status)}{reason}")
    lines += [f"Still open: {name} {summary}" for name, summary in report.firing]
    return lines


def _words(status: str) -> str:
    return {"oom": "ran out of memory", "lost_contact": "fell silent"}.get(status, status)


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {key.replace('_', ' ')}" for key, count in counts.items())


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
