"""Averted incidents that open again, since their growth never ended.

1. That is so if the growth of a new alert began before the averted one warned, and had no end in
   between (`store/growth.py`). So one leak has one first warning.
2. An incident opens again when the new alert is confirmed: one that never is leaves it as it was.
3. Answers to it are void, since whoever gave them took it for mended or false: the new alert may be
   the last before a death. They stay as feedback, which the accuracy counts: a false alarm that was
   none after all is both one that came true and one that was called false.
"""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from memagent_server.store.growth import GrowthSpan
from memagent_server.store.incidents import alerts_of, is_of_newest_launch
from memagent_server.store.models import UNCONFIRMED_STATES, AlertRow, FeedbackRow, IncidentRow


def reopen_averted(
    session: Session, incident: IncidentRow, growth: GrowthSpan
) -> IncidentRow | None:
    """Move an incident, none of whose alerts was confirmed yet, into the averted one of its growth.

    Returns that one; None if there is none.
    """
    alerts = alerts_of(session, incident)
    if any(alert.state not in UNCONFIRMED_STATES for alert in alerts):
        return None
    averted = _averted_incident(session, incident, growth)
    if averted is None or not growth.went_on(session, incident.run_id):
        return None
    for alert in alerts:
        alert.incident_id = averted.id
    _replace_answers(session, averted, incident)
    session.flush()
    session.delete(incident)
    session.flush()
    return averted


def _averted_incident(
    session: Session, incident: IncidentRow, growth: GrowthSpan
) -> IncidentRow | None:
    """Return the launch's newest averted incident that warned after the growth began."""
    has_warned_of_it = is_of_newest_launch(
        AlertRow.incident_id == IncidentRow.id,
        AlertRow.state == "averted",
        AlertRow.first_step >= growth.since_step,
    )
    query = select(IncidentRow).where(
        IncidentRow.run_id == incident.run_id,
        IncidentRow.rule == incident.rule,
        IncidentRow.cause == incident.cause,
        IncidentRow.state == "averted",
        has_warned_of_it,
    )
    return session.scalar(query.order_by(IncidentRow.id.desc()).limit(1))


def _replace_answers(session: Session, averted: IncidentRow, incident: IncidentRow) -> None:
    """Give the averted incident the answers to the new one, if there are any."""
    averted.acked_at = incident.acked_at
    averted.acked_by = incident.acked_by
    averted.snoozed_until = incident.snoozed_until
    averted.false_alarm_at = incident.false_alarm_at
    averted.note = incident.note or averted.note
    session.execute(
        update(FeedbackRow)
        .where(FeedbackRow.incident_id == incident.id)
        .values(incident_id=averted.id)
    )
