"""Writes evaluation results, a few runs per transaction: marks, forecasts, alerts, notifications.

1. Decisions are written with a mark: how far the stream has been decided. If another worker's mark
   is ahead, this worker adopts its states. If it covers some of the same samples with other
   decisions, this worker starts over from there.
2. A failed transaction is retried run by run: one run that can't be written stops no other.
3. `write` returns an outcome per stream. The evaluator applies it after the commit: evaluations
   never get ahead of the store.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from memagent.forecast import Forecast
from memagent_server.alerts.incident_updates import IncidentTransaction
from memagent_server.alerts.sharding import LostShards, Share
from memagent_server.alerts.stream_state import (
    AlertChange,
    StreamEvaluation,
    dump_evaluation,
    open_alerts,
)
from memagent_server.store.engine import Database, Session
from memagent_server.store.errors import OperationalError
from memagent_server.store.evaluation import (
    StreamHead,
    StreamMark,
    get_marks,
    put_forecaster_states,
    put_marks,
)
from memagent_server.store.forecasts import add_forecasts
from memagent_server.store.models import IncidentRow
from memagent_server.store.runs import lock_run, lock_runs

log = logging.getLogger(__name__)

RUNS_PER_TRANSACTION = 64
"""Runs whose rows one transaction locks."""
MATERIAL_ETA_CHANGE = 0.05
"""Share of the remaining steps by which an ETA must move before the forecast is written again."""
MATERIAL_AGE = 0.1
"""Share of a run's steps after which a forecast of growth is written again, as pages show it."""


@dataclass(frozen=True)
class StreamResult:
    """Result of a turn for one stream's new samples."""

    stream: StreamHead
    evaluation: StreamEvaluation
    changes: Sequence[AlertChange]

    @property
    def is_worth_writing(self) -> bool:
        newest, reported = self.evaluation.newest, self.evaluation.reported
        # up to the mark, the worker before has written what was worth it
        if newest is None or self.evaluation.read_seq <= self.evaluation.mark:
            return False
        return bool(self.changes) or is_material(reported, newest)


@dataclass(frozen=True)
class Outcome:
    """Fate of one stream's result in the store.

    written: the store has it. superseded: another worker was ahead, its `mark` counts. rejected:
    the evaluation must start over from the store.
    """

    status: Literal["written", "superseded", "rejected"]
    mark: StreamMark | None = None

    def apply_to(self, evaluation: StreamEvaluation) -> bool:
        """Bring an evaluation up to date with the store; return False if it must start over."""
        if self.status == "rejected":
            return False
        evaluation.reported = evaluation.newest
        if self.mark is not None:
            evaluation.load_mark(self.mark.seq, self.mark.states)
        else:
            evaluation.set_mark(evaluation.read_seq)
        return True


class ResultWriter:
    """Writer of one worker; `channels` get the notifications, `share` limits the runs."""

    def __init__(self, database: Database, channels: Collection[str], share: Share) -> None:
        self._database = database
        self._channels = tuple(channels)
        self._share = share

    def write(self, results: Iterable[StreamResult], now: float) -> dict[int, Outcome]:
        """Write the results that are worth it; return the outcome of each by stream.

        Raises OperationalError if the database is unavailable.
        """
        worth = [result for result in results if result.is_worth_writing]
        worth.sort(key=lambda result: result.stream.run_id)
        runs = [list(group) for _, group in groupby(worth, key=lambda item: item.stream.run_id)]
        outcomes: dict[int, Outcome] = {}
        for first in range(0, len(runs), RUNS_PER_TRANSACTION):
            outcomes |= self._write_runs(runs[first : first + RUNS_PER_TRANSACTION], now)
        return outcomes

    def write_changes(
        self, run_id: str, changes: Iterable[tuple[int, AlertChange]], now: float
    ) -> None:
        """Write (stream, change) pairs of a run that no new samples led to."""
        with self._database.write() as session:
            self._share.confirm(session, (run_id,))
            if run_id in lock_runs(session, (run_id,)):
                incidents = IncidentTransaction(session, self._channels, now)
                for stream_id, change in changes:
                    incidents.apply(run_id, stream_id, change)
                incidents.flush()

    def remind(self, incident_id: int, now: float) -> None:
        """Notify again about an incident that still fires after its snooze."""
        with self._database.write() as session:
            incident = session.get(IncidentRow, incident_id)
            if incident is None:
                return
            # before the lock on the run, in the order of every writer
            self._share.confirm(session, (incident.run_id,))
            lock_run(session, incident.run_id)
            # read again now that the run is locked
            session.refresh(incident)
            snoozed_until = incident.snoozed_until
            if incident.state == "firing" and snoozed_until is not None and snoozed_until <= now:
                incidents = IncidentTransaction(session, self._channels, now)
                incidents.remind(incident)
                incidents.flush()

    def save_evaluations(self, evaluations: Mapping[int, StreamEvaluation]) -> None:
        """Store forecasters and marks, so that another worker can take over without the past."""
        run_ids = {evaluation.run_id for evaluation in evaluations.values()}
        with self._database.write() as session:
            self._share.confirm(session, run_ids)
            existing = lock_runs(session, run_ids)
            marks = get_marks(session, evaluations)
            current = {
                stream_id: evaluation
                for stream_id, evaluation in evaluations.items()
                if evaluation.run_id in existing
                and (stream_id not in marks or marks[stream_id].seq == evaluation.mark)
            }
            put_marks(session, [_mark(*item) for item in current.items()])
            states = [
                (stream_id, evaluation.read_seq, dump_evaluation(evaluation))
                for stream_id, evaluation in current.items()
            ]
            put_forecaster_states(session, states)
        for evaluation in current.values():
            evaluation.set_mark(evaluation.read_seq)

    def _write_runs(self, runs: Sequence[list[StreamResult]], now: float) -> dict[int, Outcome]:
        """Write some runs in one transaction, or each in its own if that fails."""
        try:
            with self._database.write() as session:
                return self._write_results(session, [result for run in runs for result in run], now)
        # the database is away: a retry run by run would fail as often as there are runs
        except OperationalError:
            raise
        except Exception as error:
            if len(runs) > 1:
                outcomes: dict[int, Outcome] = {}
                for run in runs:
                    outcomes |= self._write_runs([run], now)
                return outcomes
            if not isinstance(error, LostShards):
                log.exception("run %s could not be written", runs[0][0].stream.run_id)
            return {result.stream.id: Outcome("rejected") for result in runs[0]}

    def _write_results(
        self, session: Session, results: Sequence[StreamResult], now: float
    ) -> dict[int, Outcome]:
        run_ids = list(dict.fromkeys(result.stream.run_id for result in results))
        self._share.confirm(session, run_ids)
        existing = lock_runs(session, run_ids)
        marks = get_marks(session, [result.stream.id for result in results])
        outcomes = {
            result.stream.id: _outcome(result, marks.get(result.stream.id))
            if result.stream.run_id in existing
            else Outcome("rejected")
            for result in results
        }
        accepted = [item for item in results if outcomes[item.stream.id].status == "written"]
        forecasts = [
            (result.stream.run_id, result.stream.id, result.evaluation.newest)
            for result in accepted
            if result.evaluation.newest is not None
        ]
        add_forecasts(session, forecasts, now)
        incidents = IncidentTransaction(session, self._channels, now)
        for result in accepted:
            for change in result.changes:
                incidents.apply(result.stream.run_id, result.stream.id, change)
        incidents.flush()
        put_marks(session, [_mark(result.stream.id, result.evaluation) for result in accepted])
        return outcomes


def _outcome(result: StreamResult, mark: StreamMark | None) -> Outcome:
    """Decide by the stored mark whether a result may be written (1)."""
    evaluation = result.evaluation
    if mark is None or mark.seq == evaluation.mark:
        return Outcome("written")
    if mark.seq >= evaluation.read_seq:
        return Outcome("superseded", mark)
    # The mark moved within the samples of this result: harmless if the same alerts are open.
    if open_alerts(mark.states) == evaluation.open_at_mark:
        return Outcome("written")
    return Outcome("rejected")


def _mark(stream_id: int, evaluation: StreamEvaluation) -> StreamMark:
    return StreamMark(stream_id, evaluation.read_seq, evaluation.stored_states())


def is_material(reported: Forecast | None, newest: Forecast) -> bool:
    """Return True if a forecast differs enough from the reported one to be written.

    That's another level or cause, an ETA that moved by MATERIAL_ETA_CHANGE, or growth that was
    written MATERIAL_AGE ago.
    """
    if reported is None or (reported.level, reported.cause) != (newest.level, newest.cause):
        return True
    if newest.growth_bytes_per_step and reported.step < (1 - MATERIAL_AGE) * newest.step:
        return True
    if reported.eta_step is None or newest.eta_step is None:
        return reported.eta_step is not newest.eta_step
    steps_left = max(1.0, reported.eta_step - reported.step)
    return abs(newest.eta_step - reported.eta_step) > MATERIAL_ETA_CHANGE * steps_left
