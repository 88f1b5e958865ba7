"""The texts of incidents and their alerts on pages. Pure functions: values in, text out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from memagent_server.schemas.alerts import Alert, Delivery, Incident, Transition
from memagent_server.schemas.runs import RunSummary
from memagent_server.settings import SEVERITIES
from memagent_server.store.incidents import first_step_of
from memagent_server.web.labels import Badge, count, forecast_sentence, humanize

_STATES = {
    "pending": Badge("notice", "pending", "Detected once; not yet confirmed, no notification sent"),
    "firing": Badge("critical", "firing", "Confirmed, and notifications were sent"),
    "averted": Badge("ok", "averted", "The risk ended while the run continued"),
    "finished": Badge("plain", "run ended", "The run ended before it ran out of memory"),
    "oom": Badge("critical", "out of memory", "The run ran out of memory"),
    "lost_contact": Badge(
        "notice", "lost contact", "The run stopped sending while the alert was open"
    ),
    "ok": Badge(
        "plain", "not confirmed", "Ended before it was confirmed; no notification was sent"
    ),
}


_DELIVERIES = {
    "waiting": Badge("busy", "waiting", "Will be sent"),
    "leased": Badge("busy", "sending", "Being sent"),
    "sent": Badge("ok", "sent", "Accepted by the channel"),
    "dead": Badge("critical", "failed", "The channel refused it; no more retries"),
    "skipped": Badge("plain", "skipped", "Not severe enough for this channel"),
}


def state_badge(state: str, severity: str = "") -> Badge:
    """Return the badge of an alert.

    A firing warning is less severe than a firing critical alert.
    """
    if state == "firing" and severity == "warning":
        return Badge("warning", "firing", _STATES["firing"].hint)
    if state == "firing" and severity == "note":
        return Badge("notice", "noted", "Open; its rule sends no notifications")
    if severity == "note" and state in _STATES:
        return Badge("plain", _STATES[state].text, _STATES[state].hint)
    return _STATES.get(state, Badge("plain", state))


MAX_CHANGES_SHOWN = 12


def outcome(incident: Incident) -> str:
    """Return what is to be known of an ended incident in few words: a lead time, or its cause."""
    if incident.rule == "oom":
        was_warned = any(alert.data.get("was_warned") for alert in incident.alerts)
        return "warned before" if was_warned else "no warning"
    if incident.state == "oom" and incident.severity == "note":
        return "noted, no warning"
    if incident.state == "oom":
        # runs report the last step that they completed: the next one failed
        failed = max(alert.step for alert in incident.alerts) + 1
        lead = max(0, failed - (first_step_of(incident.alerts) or 0))
        return f"warned {count(lead)} step{'' if lead == 1 else 's'} before"
    return humanize(incident.cause or incident.rule)


@dataclass(frozen=True)
class EndedRow:
    """A row of the history: an incident, and others that were open at the same death."""

    incident: Incident
    others: Sequence[Incident] = ()


def ended_rows(incidents: Iterable[Incident]) -> list[EndedRow]:
    """Return a row for each incident that ended, and one for all those of one death."""
    groups: dict[object, list[Incident]] = {}
    for item in incidents:
        # what was open at a death ends with it in one transaction
        death = (item.run_id, item.closed_at) if item.state == "oom" else item.id
        groups.setdefault(death, []).append(item)
    rows = (sorted(group, key=_is_note) for group in groups.values())
    return [EndedRow(leading, others) for leading, *others in rows]


def _is_note(incident: Incident) -> tuple[bool, bool]:
    """Order the incidents of one death: first the warning of it, or the news."""
    return incident.severity == "note", incident.rule not in ("oom_forecast", "oom")


@dataclass(frozen=True)
class Change:
    """A transition of one or several alerts of an incident, and their ranks as text.

    is_escalation: the alert had fired before, with a lower severity.
    """

    transition: Transition
    ranks: str = ""
    is_escalation: bool = False


@dataclass(frozen=True)
class IncidentView:
    """Content of an incident's card: its alerts' changes and notifications, and a summary.

    The summary is as of `step` and `at`; reasons that it repeats are left out of the changes.
    """

    summary: str
    step: int
    at: str
    changes: Sequence[Change]
    notifications: Sequence[Delivery]
    hidden_changes: int = 0


def incident_view(incident: Incident, run: RunSummary | None = None) -> IncidentView:
    """Return an incident's view, with the newest MAX_CHANGES_SHOWN changes of all its alerts in
    order.

    The summary is that of the first alert in the incident's state. If the incident is open and its
    run is given, the forecast is evaluated at the run's newest step.
    """
    alerts = incident.alerts
    changes = [(change, alert.rank) for alert in alerts for change in _changes(alert)]
    merged = _merge_changes(sorted(changes, key=lambda item: item[0].transition.at))
    leading = next((alert for alert in alerts if alert.state == incident.state), alerts[0])
    notifications = [item for alert in alerts for item in alert.notifications]
    hidden_changes = max(0, len(merged) - MAX_CHANGES_SHOWN)
    newest = [_without_repetition(change, leading.summary) for change in merged[hidden_changes:]]
    summary, step, at = leading.summary, leading.step, leading.updated_at
    if run is not None and run.last_seen_at and (sentence := _sentence_now(incident, run)):
        summary, step, at = sentence, run.step, run.last_seen_at
    return IncidentView(summary, step, at, newest, notifications, hidden_changes)


def _sentence_now(incident: Incident, run: RunSummary) -> str:
    """Return the newest forecast of an open incident's cause, empty if there is none."""
    forecast = run.forecast
    if forecast is None or run.status != "running" or incident.closed_at is not None:
        return ""
    is_same = incident.rule == "oom_forecast" and incident.cause in (None, forecast.cause)
    return f"{forecast_sentence(run, forecast)}." if is_same and forecast.level != "ok" else ""


def _changes(alert: Alert) -> list[Change]:
    """Return an alert's changes, in order."""
    before = [None, *alert.transitions]
    return [
        Change(change, is_escalation=old is not None and _is_worse(old, change))
        for old, change in zip(before, alert.transitions, strict=False)
    ]


def _is_worse(old: Transition, change: Transition) -> bool:
    """Return True if a firing alert became more severe: a reminder leaves it as it was."""
    is_firing = old.to_state == change.from_state == change.to_state == "firing"
    return is_firing and SEVERITIES.index(change.severity) > SEVERITIES.index(old.severity)


def change_badge(change: Change) -> Badge:
    """Return the badge of a change: of one that made an alert worse, how bad it is now."""
    transition = change.transition
    badge = state_badge(transition.to_state, transition.severity)
    if change.is_escalation:
        return Badge(badge.tone, transition.severity, "Firing, now as severe as this")
    return badge


def _without_repetition(change: Change, summary: str) -> Change:
    transition = change.transition
    # an escalation keeps its reason: without it, it would look like the same state twice
    if transition.reason != summary or change.is_escalation:
        return change
    return replace(change, transition=structs.replace(transition, reason=""))


def incident_ranks(incident: Incident) -> str:
    """Return the ranks of an incident as text, empty if no alert has a rank."""
    return name_ranks({alert.rank for alert in incident.alerts})


def name_ranks(ranks: Collection[int | None]) -> str:
    """Return ranks as text: `rank 3`, `8 ranks: 0 to 7`, `3 ranks: 0, 2, 5`."""
    numbers = sorted(rank for rank in ranks if rank is not None)
    if len(numbers) < 2:
        return f"rank {numbers[0]}" if numbers else ""
    is_dense = len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{len(numbers)} ranks: " + (
        f"{numbers[0]} to {numbers[-1]}" if is_dense else ", ".join(map(str, numbers))
    )


def _merge_changes(changes: Iterable[tuple[Change, int | None]]) -> list[Change]:
    """Merge changes of several ranks to the same state at the same step.

    The merged change has the first one's reason.
    """
    merged: dict[tuple[str, str, int], tuple[Change, set[int | None]]] = {}
    for change, rank in changes:
        transition = change.transition
        key = (transition.to_state, transition.severity, transition.step)
        merged.setdefault(key, (change, set()))[1].add(rank)
    return [replace(change, ranks=name_ranks(ranks)) for change, ranks in merged.values()]


def step_of_change(change: Transition) -> str:
    """Return the step of a change: of a death the one that failed, else the last completed."""
    step = change.step + 1 if change.to_state == "oom" else change.step
    return f"step {count(step)}"


def delivery_badge(state: str) -> Badge:
    return _DELIVERIES.get(state, Badge("plain", state))
