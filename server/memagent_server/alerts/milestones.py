"""Notifications of good news: a run has taken its first step, or has completed.

1. They are off until a project switches the rule on, and aren't sent for what came before.
2. Each is an alert that ends as it opens, so that routes, quiet hours and the outbox apply.
"""

from __future__ import annotations

from collections.abc import Collection

from memagent_server.alerts.event_rules import MILESTONES
from memagent_server.alerts.incident_updates import IncidentTransaction
from memagent_server.alerts.rule_config import Policies, RuleConfig
from memagent_server.alerts.rule_input import RuleInput
from memagent_server.alerts.run_rules import isolated
from memagent_server.alerts.sharding import Share
from memagent_server.store.engine import Database, Session
from memagent_server.store.models import RunRow
from memagent_server.store.predictions import prediction_for
from memagent_server.store.rules import all_rule_settings
from memagent_server.store.runs import lock_run, lock_runs
from memagent_server.store.streams import current_streams
from memagent_server.store.unreported import unreported_milestones

CHECK_EVERY_S = 5.0
RECENT_S = 86_400.0
"""News that a worker's outage delays for longer aren't sent."""


class MilestoneWriter:
    """The milestones of runs, for one worker; `channels` get the notifications."""

    def __init__(self, database: Database, channels: Collection[str], share: Share) -> None:
        self._database = database
        self._channels = tuple(channels)
        self._share = share
        self._checked_at = float("-inf")

    def turn(self, policies: Policies, now: float) -> bool:
        """Report the milestones that runs have reached; return whether any."""
        # a negative age means that the wall clock was set back
        if 0.0 <= now - self._checked_at < CHECK_EVERY_S:
            return False
        self._checked_at = now
        reached: list[tuple[str, RuleConfig]] = []
        with self._database.read() as session:
            # without a project that wants them, no run is searched
            wanted = [
                row for row in all_rule_settings(session) if row.is_on and row.rule in MILESTONES
            ]
            for rule in {row.rule for row in wanted}:
                # what came before the first switch stays unreported: it isn't read every time
                switched_at = min(row.updated_at for row in wanted if row.rule == rule)
                since = max(now - RECENT_S, switched_at)
                for run in unreported_milestones(session, rule, since):
                    config = policies.of(run.project)[rule]
                    at = run.finished_at if rule == "finished" else run.created_at
                    if config.is_on and (at or 0.0) >= config.updated_at:
                        reached.append((run.id, config))
        own = [(run_id, config) for run_id, config in reached if self._share.holds(run_id)]
        for run_id, config in own:
            with isolated(f"run {run_id}"):
                self._report(run_id, config, now)
        return bool(own)

    def _report(self, run_id: str, config: RuleConfig, now: float) -> None:
        rule = config.rule
        with self._database.write() as session:
            self._share.confirm(session, (run_id,))
            if run_id not in lock_runs(session, (run_id,)):
                return
            run = lock_run(session, run_id)
            rule_input, stream_id = _input_of(session, run)
            result = rule.decide(rule_input, config.thresholds, False)
            incidents = IncidentTransaction(session, self._channels, now)
            alert = incidents.open(
                run_id,
                stream_id,
                rule.name,
                severity=config.severity(result.level) or "note",
                step=run.step,
                data=result.data,
                cause=None,
            )
            incidents.end(alert, "finished", step=run.step, reason=rule.summarize(result.data))
            incidents.flush()


def _input_of(session: Session, run: RunRow) -> tuple[RuleInput, int | None]:
    """Return the figures of a run's fullest device, and its stream."""
    streams = current_streams(session, [run.id])
    stream = max(streams, key=lambda item: item.peak_bytes or 0, default=None)
    prediction = prediction_for(session, run.id, stream) if stream is not None else None
    started_at = run.started_at or run.created_at
    rule_input = RuleInput(
        step=run.step,
        launch_peak_bytes=stream.peak_bytes if stream is not None else None,
        limit_bytes=stream.limit_bytes if stream is not None else None,
        predicted_peak_bytes=prediction.peak_allocated_bytes if prediction is not None else None,
        run_s=run.finished_at - started_at if run.finished_at is not None else None,
    )
    return rule_input, stream.id if stream is not None else None
