"""Feeds new samples of running runs to their forecasters, and turns what rules make of them into forecasts and alerts in the store.

1. Each current device stream of a running run has a `Watch`: a forecaster, alert states, and how far it has read.
2. What is decided is written with a mark of how far: a worker that was restarted, or a second one on the same database, adds nothing to
   what is decided already. Who finds the mark ahead of itself takes over what stands there.
3. Rules about whole runs (one rank against the others, a run that stands still) are asked every few seconds, new samples or not.
4. When the run has ended, its streams are read to the end; what follows for its alerts is in `endings`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent.forecast import Forecast
from memagent_server.alerts.endings import end_alerts, unheard_ends
from memagent_server.alerts.ledger import Ledger
from memagent_server.alerts.policy import Policy, read_policy
from memagent_server.alerts.runwide import RunWatch, look_at_run
from memagent_server.alerts.state import gravest
from memagent_server.alerts.watch import Change, Watch, begin_watch, read_new, standing
from memagent_server.store.alerts import find_open, open_but_over
from memagent_server.store.engine import Database
from memagent_server.store.forecasts import add_forecast
from memagent_server.store.history import get_mark, put_mark
from memagent_server.store.incidents import woken
from memagent_server.store.models import Incident, Run, Stream
from memagent_server.store.runs import lock_run
from memagent_server.store.streams import current_streams
from memagent_server.store.troubles import trouble_of

log = logging.getLogger(__name__)

MATERIAL_ETA_CHANGE = 0.05
LOOK_AT_RUNS_S = 5.0
OVER = {"averted": "it has been calm since", "ok": "it was not confirmed"}


class Evaluator:
    """One worker's evaluation; `channels` are the names of the channels that get notifications."""

    def __init__(self, database: Database, channels: Collection[str]) -> None:
        self._database, self._channels = database, tuple(channels)
        self._watches: dict[int, Watch] = {}
        self._runs: dict[str, RunWatch] = {}
        self._policies: dict[str, Policy] = {}
        self._looked_at = float("-inf")

    def turn(self, now: float) -> bool:
        """Evaluate everything that is new; returns whether there was anything."""
        self._policies.clear()
        with self._database.read() as session:
            running = session.execute(select(Run.id, Run.project).where(Run.status == "running"))
            projects = {row.id: row.project for row in running}
            streams = current_streams(session, list(projects))
        busy = False
        for stream in streams:
            busy = self._guarded(stream.run_id, self._follow, stream, projects, now) or busy
        if now - self._looked_at >= LOOK_AT_RUNS_S:
            self._looked_at = now
            self._look_at_runs(projects, streams, now)
        for run_id in self._to_close({stream.id for stream in streams}):
            busy = self._guarded(run_id, self._close, run_id, now) or busy
        return busy

    def _guarded(self, run_id: str, work: Callable[..., bool], *arguments: object) -> bool:
        """One run that fails must not stop the others, but a database that fails stops them all."""
        try:
            return work(*arguments)
        except Exception as error:
            if trouble_of(error) is not None:
                raise
            log.exception("run %s could not be evaluated", run_id)
            return False

    def _policy(self, session: Session, project: str) -> Policy:
        """How a project wants its rules, read once a turn."""
        if project not in self._policies:
            self._policies[project] = read_policy(session, project)
        return self._policies[project]

    # -- following a running stream ----------------------------------------------------------------------------------

    def _follow(self, stream: Stream, projects: dict[str, str], now: float) -> bool:
        watch = self._watches.get(stream.id)
        if watch is None or watch.run_id != stream.run_id:  # SQLite gives the ids of deleted rows to new ones
            with self._database.read() as session:
                watch = begin_watch(session, stream)
            if watch is None:
                return False
            self._watches[stream.id] = watch
        elif watch.chunks == stream.chunks:
            return False
        self._read(stream, watch, projects[stream.run_id], now)
        return True

    def _read(self, stream: Stream, watch: Watch, project: str, now: float) -> None:
        try:
            with self._database.read() as session:
                changes = read_new(session, stream, watch, self._policy(session, project), now)
            self._write(stream, watch, changes, now)
        except Exception:
            self._watches.pop(stream.id, None)  # it is ahead of the store: begin anew from there
            raise

    def _write(self, stream: Stream, watch: Watch, changes: list[Change], now: float) -> None:
        newest = watch.newest
        if newest is None or not (changes or is_news(watch.told, newest)):
            return
        with self._database.write() as session:
            lock_run(session, stream.run_id)
            mark = get_mark(session, stream.id)
            if mark is not None and mark.seq != watch.mark:  # another worker was quicker
                if mark.seq >= watch.read_seq:
                    watch.adopt(mark.seq, mark.states)
                    watch.told = newest
                    return
                if standing(mark.states) != watch.decided:
                    del self._watches[stream.id]  # it decided on what is decided here again: begin anew from there
                    return
            if changes or is_news(watch.told, newest):
                add_forecast(session, stream, newest, now)
            ledger = Ledger(session, self._channels, now)
            for change in changes:
                enter(session, ledger, stream.run_id, stream.id, change)
            ledger.settle()
            put_mark(session, stream.id, watch.read_seq, watch.kept())
        watch.told = newest
        watch.set_mark(watch.read_seq)

    # -- rules about whole runs --------------------------------------------------------------------------------------

    def _look_at_runs(self, projects: dict[str, str], streams: list[Stream], now: float) -> None:
        self._runs = {run_id: self._runs.get(run_id) or RunWatch() for run_id in projects}
        for run_id, watch in self._runs.items():
            mine = [(stream, self._watches.get(stream.id)) for stream in streams if stream.run_id == run_id]
            self._guarded(run_id, self._look, run_id, watch, mine, now)
        with self._database.read() as session:
            awake = [incident.id for incident in woken(session, now)]
        for incident_id in awake:
            self._remind(incident_id, now)

    def _look(self, run_id: str, watch: RunWatch, streams: list[tuple[Stream, Watch | None]], now: float) -> bool:
        with self._database.read() as session:
            policy = self._policy(session, session.get_one(Run, run_id).project)
            changes = look_at_run(session, run_id, watch, streams, policy, now)
        if not changes:
            return False
        with self._database.write() as session:
            lock_run(session, run_id)
            ledger = Ledger(session, self._channels, now)
            for stream_id, change in changes:
                enter(session, ledger, run_id, stream_id, change)
            ledger.settle()
        return True

    def _remind(self, incident_id: int, now: float) -> None:
        with self._database.write() as session:
            found = session.get(Incident, incident_id)
            if found is None:
                return
            lock_run(session, found.run_id)
            session.refresh(found)
            if found.state == "firing" and found.snoozed_until is not None and found.snoozed_until <= now:
                ledger = Ledger(session, self._channels, now)
                ledger.remind(found)
                ledger.settle()

    # -- closing what belongs to ended runs ----------------------------------------------------------------------------

    def _to_close(self, followed: set[int]) -> list[str]:
        """Runs with a launch that has ended and still has a watch, an open alert, or an end that nobody has heard of."""
        gone = [stream_id for stream_id in self._watches if stream_id not in followed]
        with self._database.read() as session:
            watched = session.scalars(select(Stream.run_id).where(Stream.id.in_(gone))) if gone else ()
            unheard = unheard_ends(session, lambda project: self._policy(session, project))
            found = list(dict.fromkeys([*watched, *open_but_over(session), *unheard]))
        for stream_id in gone:
            if self._watches[stream_id].run_id not in found:
                del self._watches[stream_id]  # the run was deleted
        return found

    def _close(self, run_id: str, now: float) -> bool:
        with self._database.read() as session:
            run = session.get_one(Run, run_id)
            policy = self._policy(session, run.project)
            streams = list(session.scalars(select(Stream).where(Stream.run_id == run_id)))
        for stream in streams:
            watch = self._watches.pop(stream.id, None)
            if watch is not None and stream.is_current and watch.chunks != stream.chunks:
                self._read(stream, watch, run.project, now)
        with self._database.write() as session:
            end_alerts(session, lock_run(session, run_id), policy, self._channels, now)
        return True


def enter(session: Session, ledger: Ledger, run_id: str, stream_id: int | None, change: Change) -> None:
    """Write one change into the ledger, if it is one to what the store has open."""
    alert = find_open(session, run_id, change.rule, stream_id)
    state, finding = change.state, change.finding
    if not state.is_open:
        stood_as = "firing" if state.state == "averted" else "pending"
        if alert is not None and alert.state == stood_as:
            ledger.end(alert, state.state, step=change.step, reason=change.reason or OVER[state.state])
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
    return abs(newest.eta_step - told.eta_step) > MATERIAL_ETA_CHANGE * max(1.0, told.eta_step - told.step)
