"""The order of open incidents on the alerts page: the run with the least time left comes first.

1. Incidents with the same cause form a group, for they often have the same remedy.
2. Groups, and incidents within one, are ordered by the time left. Those that someone acknowledged
   or snoozed follow.
3. Notes, which sent no messages, are the last group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from memagent_server.schemas.alerts import Incident
from memagent_server.schemas.runs import RunSummary
from memagent_server.schemas.snapshots import SuspectByRank
from memagent_server.settings import SEVERITIES
from memagent_server.web.incident_views import state_badge
from memagent_server.web.labels import Badge, humanize, oom_time, seconds_left, to_seconds

NOTES = "Notes"
"""Title of the group of incidents that sent no messages."""


@dataclass(frozen=True)
class TriageRow:
    """An incident: `urgency` is the time left, or its state if no time is known."""

    incident: Incident
    urgency: Badge
    user: str
    suspect: str
    is_handled: bool
    run: RunSummary | None = None


@dataclass(frozen=True)
class TriageGroup:
    """Incidents of one cause. `pending_ids` are the unacknowledged alerts."""

    title: str
    rows: Sequence[TriageRow]
    pending_ids: Sequence[int]

    @property
    def is_notes(self) -> bool:
        return self.title == NOTES


def triage(
    incidents: Iterable[Incident],
    runs: Mapping[str, RunSummary],
    suspects: Mapping[str, str],
    now: float,
) -> list[TriageGroup]:
    """Return open incidents in groups. `runs` and places of suspects are by run id."""
    groups: dict[str, list[Incident]] = {}
    for incident in sorted(incidents, key=lambda item: _order(item, runs.get(item.run_id), now)):
        groups.setdefault(_title(incident), []).append(incident)
    titles = sorted(groups, key=lambda title: title == NOTES)
    return [_group(title, groups[title], runs, suspects, now) for title in titles]


def _group(
    title: str,
    incidents: Sequence[Incident],
    runs: Mapping[str, RunSummary],
    suspects: Mapping[str, str],
    now: float,
) -> TriageGroup:
    rows = [
        _row(item, runs.get(item.run_id), suspects.get(item.run_id, ""), now) for item in incidents
    ]
    pending_ids = [row.incident.alerts[0].id for row in rows if row.incident.acked_at is None]
    return TriageGroup(title, rows, pending_ids)


def _row(incident: Incident, run: RunSummary | None, suspect: str, now: float) -> TriageRow:
    badge = state_badge(incident.state, incident.severity)
    left = oom_time(run) if run is not None and incident.rule == "oom_forecast" else ""
    hint = "Time until memory runs out" if left else badge.hint
    return TriageRow(
        incident,
        Badge(badge.tone, left or badge.text, hint),
        (run.user or "") if run is not None else "",
        suspect,
        _is_handled(incident, now),
        run,
    )


def place_of(suspect: SuspectByRank) -> str:
    """Return `train.py:42`, "" without a file."""
    if not suspect.file:
        return ""
    return suspect.file.rpartition("/")[2] + (f":{suspect.line}" if suspect.line else "")


def _title(incident: Incident) -> str:
    return NOTES if incident.severity == "note" else humanize(incident.cause or incident.rule)


def _order(incident: Incident, run: RunSummary | None, now: float) -> tuple[bool, float, int, str]:
    left = seconds_left(run) if run is not None else inf
    severity = -SEVERITIES.index(incident.severity)
    return _is_handled(incident, now), left, severity, incident.opened_at


def _is_handled(incident: Incident, now: float) -> bool:
    until = incident.snoozed_until
    return incident.acked_at is not None or (until is not None and to_seconds(until) > now)
