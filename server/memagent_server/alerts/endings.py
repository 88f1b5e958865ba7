"""How alerts end with their launch, and who else must be told of an end.

1. The end of the run ends what is open as the run ended.
2. A newer launch of the run ends what is open of the older one, as that one ended; if it never said how, contact with it was lost.
3. A launch that died of out-of-memory, or fell silent, without an alert that says so gets one, already ended.
   That holds for each launch, and for each silence of a launch that spoke again in between.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent_server.alerts.rules import RULES
from memagent_server.alerts.state import AlertState, end
from memagent_server.store.alerts import add_transition, change_alert, ended_unheard, open_alert, open_alerts
from memagent_server.store.models import Alert, Rank, Run, Stream
from memagent_server.store.streams import current_streams


def end_alerts(session: Session, run: Run, channels: Collection[str], now: float) -> None:
    """End what is over of a run whose row is locked, and tell of an end that no alert has told of."""
    for alert in open_alerts(session, run.id):
        stream = session.get(Stream, alert.stream_id) if alert.stream_id is not None else None
        if stream is not None and not stream.is_current:
            status, step, reason = _end_of_older(session, stream)
        elif run.status != "running":
            status, step, reason = run.status, run.step, _reason(run)
        else:
            continue
        before, ended = alert.state, end(AlertState("firing"), status, now)
        if change_alert(session, alert, now=now, state=ended.state, step=max(alert.step, step)):
            add_transition(
                session, alert, from_state=before, to_state=ended.state, reason=reason, now=now, channels=channels
            )
    if ended_unheard(session, run.id):
        _tell_of_end(session, run, channels, now)


def _end_of_older(session: Session, stream: Stream) -> tuple[str, int, str]:
    """Status, last step and words for the launch that `stream` belonged to."""
    rank = session.get(Rank, (stream.run_id, stream.rank, stream.attempt))
    step = stream.last_step or 0
    if rank is None or rank.status == "running":
        return "lost_contact", step, "a new launch of the run began, and this one never said how it ended"
    return rank.status, step, f"this launch ended as {rank.status}" + (f": {rank.error}" if rank.error else "")


def _tell_of_end(session: Session, run: Run, channels: Collection[str], now: float) -> None:
    streams = current_streams(session, [run.id])
    stream = streams[0] if streams else None
    facts: dict[str, Any] = {"step": run.step, "level": "critical", "was_warned": _was_warned(session, run.id)}
    if stream is not None:
        facts |= {"used_bytes": stream.peak_bytes, "limit_bytes": stream.limit_bytes}
    rule = RULES[run.status]
    alert = open_alert(
        session, run_id=run.id, stream_id=stream.id if stream else None, rule=rule.name, severity="critical",
        state="firing", step=run.step, summary=rule.summarize(facts), data=facts, now=now,
    )  # fmt: skip
    change_alert(session, alert, now=now, state=run.status)
    add_transition(
        session, alert, from_state="ok", to_state=run.status, reason=_reason(run), now=now, channels=channels
    )


def _was_warned(session: Session, run_id: str) -> bool:
    """Whether this launch was ever forecast to run out."""
    forecast = (
        select(Alert.id)
        .join(Stream, Stream.id == Alert.stream_id)
        .where(Alert.run_id == run_id, Alert.rule == "oom_forecast", Stream.is_current)
    )
    return session.scalar(forecast.limit(1)) is not None


def _reason(run: Run) -> str:
    return f"the run ended as {run.status}" + (f": {run.error}" if run.error else "")
