"""Writes what was decided on many streams, a few runs a transaction: marks, forecasts, alerts and the messages they cause.

1. What is decided is written with a mark of how far. Who finds the mark ahead of itself takes over what stands there; who finds one that
   was decided on the same samples as its own begins anew.
2. A transaction that fails is tried again run by run: one run that cannot be written stops no other.
3. A watch learns what the store knows after the commit only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from memagent.forecast import Forecast
from memagent_server.alerts.incident_updates import IncidentTransaction
from memagent_server.alerts.sharding import LostShards, Share
from memagent_server.alerts.state import gravest
from memagent_server.alerts.stream_state import Change, StreamEvaluation, remembered, standing
from memagent_server.store.alerts import find_open
from memagent_server.store.engine import Database
from memagent_server.store.evaluation_state import Mark, get_marks, put_marks, put_recollections
from memagent_server.store.forecasts import add_forecasts
from memagent_server.store.pending_samples import StreamHead
from memagent_server.store.runs import lock_runs

log = logging.getLogger(__name__)

RUNS_AT_ONCE = 64
"""Runs whose rows one transaction holds."""
MATERIAL_ETA_CHANGE = 0.05
OVER = {"averted": "it has been calm since", "ok": "it was not confirmed"}


@dataclass(frozen=True)
class StreamResult:
    """What a turn made of one stream's new samples."""

    stream: StreamHead
    watch: StreamEvaluation
    changes: Sequence[Change]

    @property
    def is_worth_writing(self) -> bool:
        newest = self.watch.newest
        return newest is not None and (bool(self.changes) or is_news(self.watch.told, newest))


class ResultWriter:
    """Writes for one worker; `channels` are the names of those that get notifications, `share` says what is the worker's to write."""

    def __init__(self, database: Database, channels: Collection[str], share: Share) -> None:
        self._database, self._channels, self._share = database, tuple(channels), share

    def write(self, decided: Iterable[StreamResult], now: float) -> set[int]:
        """Write all that is worth it; returns the streams whose watches are no use any more. Raises what a database that is away raises."""
        worth = sorted(
            (one for one in decided if one.is_worth_writing), key=lambda one: one.stream.run_id
        )
        by_run = [list(group) for _, group in groupby(worth, key=lambda one: one.stream.run_id)]
        lost: set[int] = set()
        for first in range(0, len(by_run), RUNS_AT_ONCE):
            lost |= self._write_runs(by_run[first : first + RUNS_AT_ONCE], now)
        return lost

    def enter(self, run_id: str, changes: Iterable[tuple[int, Change]], now: float) -> None:
        """Write changes of a run's alerts that no new samples led to: (stream, change)."""
        with self._database.write() as session:
            self._share.confirm(session, (run_id,))
            if run_id in lock_runs(session, (run_id,)):
                ledger = IncidentTransaction(session, self._channels, now)
                for stream_id, change in changes:
                    enter(session, ledger, run_id, stream_id, change)
                ledger.settle()

    def remember(self, watches: Mapping[int, StreamEvaluation]) -> None:
        """Keep what forecasters know, with marks as far, so that who takes over need not read the past again."""
        run_ids = {watch.run_id for watch in watches.values()}
        with self._database.write() as session:
            self._share.confirm(session, run_ids)
            alive = lock_runs(session, run_ids)
            marks = get_marks(session, watches)
            kept = {
                stream_id: watch
                for stream_id, watch in watches.items()
                if watch.run_id in alive
                and (stream_id not in marks or marks[stream_id].seq == watch.mark)
            }
            put_marks(
                session,
                [
                    Mark(stream_id, watch.read_seq, watch.kept())
                    for stream_id, watch in kept.items()
                ],
            )
            states = [
                (stream_id, watch.read_seq, remembered(watch)) for stream_id, watch in kept.items()
            ]
            put_recollections(session, states)
        for watch in kept.values():
            watch.set_mark(watch.read_seq)

    def _write_runs(self, by_run: Sequence[list[StreamResult]], now: float) -> set[int]:
        try:
            with self._database.write() as session:
                learnt = list(self._entered(session, [one for run in by_run for one in run], now))
        except OperationalError:
            raise
        except Exception as error:
            if len(by_run) > 1:
                return set().union(*(self._write_runs([run], now) for run in by_run))
            if not isinstance(error, LostShards):
                log.exception("run %s could not be written", by_run[0][0].stream.run_id)
            return {one.stream.id for one in by_run[0]}
        return {one.stream.id for one, learn in learnt if not learn()}

    def _entered(
        self, session: Session, decided: Sequence[StreamResult], now: float
    ) -> Iterator[tuple[StreamResult, Callable[[], bool]]]:
        """Each stream with what its watch is to do after the commit; that returns whether it goes on."""
        run_ids = list(dict.fromkeys(one.stream.run_id for one in decided))
        self._share.confirm(session, run_ids)
        alive = lock_runs(session, run_ids)
        marks = get_marks(session, [one.stream.id for one in decided])
        new = []
        for one in decided:
            mark = marks.get(one.stream.id)
            if one.stream.run_id not in alive:
                yield one, lambda: False
            elif mark is None or mark.seq == one.watch.mark or (
                mark.seq < one.watch.read_seq and standing(mark.states) == one.watch.decided
            ):  # fmt: skip
                new.append(one)
                yield one, one.watch.written
            elif mark.seq >= one.watch.read_seq:  # another worker was quicker
                yield one, partial(one.watch.overtaken, mark.seq, mark.states)
            else:  # it decided on what is decided here again: begin anew from there
                yield one, lambda: False
        self._enter(session, new, now)

    def _enter(self, session: Session, decided: Sequence[StreamResult], now: float) -> None:
        answers = [
            (one.stream.run_id, one.stream.id, one.watch.newest)
            for one in decided
            if one.watch.newest is not None
        ]
        add_forecasts(session, answers, now)
        ledger = IncidentTransaction(session, self._channels, now)
        for one in decided:
            for change in one.changes:
                enter(session, ledger, one.stream.run_id, one.stream.id, change)
        ledger.settle()
        put_marks(
            session, [Mark(one.stream.id, one.watch.read_seq, one.watch.kept()) for one in decided]
        )


def enter(
    session: Session,
    ledger: IncidentTransaction,
    run_id: str,
    stream_id: int | None,
    change: Change,
) -> None:
    """Write one change into the ledger, if it is one to what the store has open."""
    alert = find_open(session, run_id, change.rule, stream_id)
    state, finding = change.state, change.finding
    if not state.is_open:
        stood_as = "firing" if state.state == "averted" else "pending"
        if alert is not None and alert.state == stood_as:
            ledger.end(
                alert, state.state, step=change.step, reason=change.reason or OVER[state.state]
            )
        return
    if alert is None:
        alert = ledger.open(
            run_id, stream_id, change.rule, severity=state.severity, step=change.step, data=finding.data, cause=finding.cause
        )  # fmt: skip
    if state.state == "firing" and (
        alert.state != "firing" or gravest(state.severity, alert.severity) != alert.severity
    ):
        ledger.raise_(alert, severity=state.severity, step=change.step, data=finding.data)


def is_news(told: Forecast | None, newest: Forecast) -> bool:
    """Whether the answer changed enough to be kept: another level or cause, or an ETA that moved by a twentieth of what is left."""
    if told is None or (told.level, told.cause) != (newest.level, newest.cause):
        return True
    if told.eta_step is None or newest.eta_step is None:
        return told.eta_step is not newest.eta_step
    return abs(newest.eta_step - told.eta_step) > MATERIAL_ETA_CHANGE * max(
        1.0, told.eta_step - told.step
    )
