"""How alerts end with their launch, and who else must be told of an end.

1. The end of the run ends what is open as the run ended.
2. A newer launch of the run ends what is open of the older one, as that one ended; if it never said how, contact with it was lost.
3. A launch that died of out-of-memory, or fell silent, without an alert that says so gets one, already ended.
   That holds for each launch, and for each silence of a launch that spoke again in between.
4. What was only pending ends unheard of, but for out-of-memory: then it was right, if late.
"""

from __future__ import annotations

from collections.abc import Collection

from memagent_server.alerts.incident_updates import IncidentTransaction
from memagent_server.alerts.rule_config import Policies, Policy
from memagent_server.alerts.rule_input import RuleInput
from memagent_server.alerts.state import AlertState, state_after_run
from memagent_server.store.alerts import open_alerts, unreported_ends, was_warned
from memagent_server.store.engine import Session
from memagent_server.store.models import Rank, Run, Stream
from memagent_server.store.streams import current_streams

OF_LATE_S, ALL_EVERY_S = 86_400.0, 3_600.0
_ENDED = {
    "completed": "completed",
    "failed": "failed",
    "oom": "died of out-of-memory",
    "lost_contact": "fell silent",
}


def end_alerts(
    session: Session, run: Run, policy: Policy, channels: Collection[str], now: float
) -> None:
    """End what is over of a run whose row is locked, and tell of an end that no alert has told of."""
    ledger = IncidentTransaction(session, channels, now)
    for alert in open_alerts(session, run.id):
        stream = session.get(Stream, alert.stream_id) if alert.stream_id is not None else None
        if stream is not None and not stream.is_current:
            status, step, reason = _end_of_older(session, stream)
        elif run.status != "running":
            status, step, reason = run.status, run.step, _reason(run)
        else:
            continue
        stood = AlertState("firing" if alert.state == "firing" else "pending")
        ledger.end(alert, state_after_run(stood, status, now).state, step=step, reason=reason)
    ledger.flush()
    if unreported_ends(session, run.id) and policy[run.status].is_on:
        _tell_of_end(session, ledger, run, policy)
        ledger.flush()


class RunEndings:
    """Looks for ends that nobody has heard of: among runs of late each time, and among all that there ever were now and then."""

    def __init__(self) -> None:
        self._looked_at_all = float("-inf")

    def unheard(self, session: Session, policies: Policies, now: float) -> list[str]:
        """Runs that have died or fallen silent, whose projects want to hear of it and have not."""
        is_time = not 0.0 <= now - self._looked_at_all < ALL_EVERY_S
        found = unreported_ends(session, seen_after=None if is_time else now - OF_LATE_S)
        if is_time:
            self._looked_at_all = now
        return [run.id for run in found if policies.of(run.project)[run.status].is_on]


def _end_of_older(session: Session, stream: Stream) -> tuple[str, int, str]:
    """Status, last step and words for the launch that `stream` belonged to."""
    rank = session.get(Rank, (stream.run_id, stream.rank, stream.attempt))
    step = stream.last_step or 0
    if rank is None or rank.status == "running":
        return (
            "lost_contact",
            step,
            "a new launch of the run began, and this one never said how it ended",
        )
    return rank.status, step, _in_words("this launch", rank.status, rank.error)


def _tell_of_end(session: Session, ledger: IncidentTransaction, run: Run, policy: Policy) -> None:
    streams = current_streams(session, [run.id])
    stream = streams[0] if streams else None
    facts = RuleInput(
        step=run.step, status=run.status, error=run.error, was_warned=was_warned(session, run.id),
        launch_peak_bytes=stream.peak_bytes if stream else None, limit_bytes=stream.limit_bytes if stream else None,
    )  # fmt: skip
    wanted = policy[run.status]
    finding = wanted.rule.decide(facts, wanted.thresholds, False)
    alert = ledger.open(
        run.id, stream.id if stream else None, wanted.rule.name, severity=wanted.severity(finding.level) or "note", step=run.step,
        data=finding.data, cause=finding.cause, reason=_reason(run),
    )  # fmt: skip
    ledger.end(alert, run.status, step=run.step, reason=_reason(run))


def _reason(run: Run) -> str:
    return _in_words("the run", run.status, run.error)


def _in_words(what: str, status: str, error: str | None) -> str:
    return f"{what} {_ENDED.get(status, f'ended as {status}')}" + (f": {error}" if error else "")
