"""Feeds new samples of running runs to their forecasters, and turns what comes out into forecasts and alerts in the store.

1. Each current device stream of a running run has a `Watch`: a forecaster, an alert state, and how far it has read.
2. A new watch of a stream that has had an alert (the worker was restarted, or there are two) first reads all that is stored without
   a word; then its alert state is made to agree with the newest alert in the store.
3. When the run has ended, its streams are read to the end; what follows for its alerts is in `endings`.
4. Workers that share a database agree by locking the run and by what the store has open: who comes second has nothing to add.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent.forecast import Forecast, Forecaster, feed
from memagent_server.alerts.endings import end_alerts
from memagent_server.alerts.rules import RULES
from memagent_server.alerts.state import AlertState, observe
from memagent_server.store.alerts import (
    add_transition,
    change_alert,
    ended_unheard,
    open_alert,
    open_alerts,
    open_but_over,
)
from memagent_server.store.engine import Database
from memagent_server.store.forecasts import add_forecast
from memagent_server.store.models import Alert, Run, Stream
from memagent_server.store.predictions import list_predictions
from memagent_server.store.runs import lock_run
from memagent_server.store.samples import read_samples
from memagent_server.store.streams import current_streams

log = logging.getLogger(__name__)

MATERIAL_ETA_CHANGE = 0.05


@dataclass
class Watch:
    """What is kept of one stream between turns."""

    run_id: str
    forecaster: Forecaster
    read_seq: int = -1
    chunks: int = 0
    alert: AlertState = field(default_factory=AlertState)
    newest: Forecast | None = None
    told: Forecast | None = None
    """The forecast last written to the store."""


class Evaluator:
    """One worker's evaluation; `channels` are the names of the channels that get notifications."""

    def __init__(self, database: Database, channels: Collection[str]) -> None:
        self._database, self._channels = database, tuple(channels)
        self._watches: dict[int, Watch] = {}

    def turn(self, now: float) -> bool:
        """Evaluate everything that is new; returns whether there was anything."""
        with self._database.read() as session:
            running = list(session.scalars(select(Run.id).where(Run.status == "running")))
            streams = current_streams(session, running)
        busy = False
        for stream in streams:
            busy = self._guarded(stream.run_id, lambda stream=stream: self._follow(stream, now)) or busy
        for run_id in self._to_close({stream.id for stream in streams}):
            busy = self._guarded(run_id, lambda run_id=run_id: self._close(run_id, now)) or busy
        return busy

    def _guarded(self, run_id: str, work: Any) -> bool:
        """One run that fails must not stop the others."""
        try:
            return bool(work())
        except Exception:
            log.exception("run %s could not be evaluated", run_id)
            return False

    # -- following a running stream ----------------------------------------------------------------------------------

    def _follow(self, stream: Stream, now: float) -> bool:
        watch = self._watches.get(stream.id)
        if watch is None or watch.run_id != stream.run_id:  # SQLite gives the ids of deleted rows to new ones
            watch = self._begin(stream, now)
            if watch is None:
                return False
        elif watch.chunks == stream.chunks:
            return False
        try:
            self._write(stream, watch, self._read(stream, watch, now), now)
        except Exception:
            self._watches.pop(stream.id, None)  # it is ahead of the store: begin anew from there
            raise
        return True

    def _begin(self, stream: Stream, now: float) -> Watch | None:
        """A watch that has read all that is stored, in agreement with the alert that is open."""
        limit = stream.limit_bytes or stream.latest.get("limit_bytes")
        if not limit:
            return None
        with self._database.read() as session:
            run = session.get_one(Run, stream.run_id)
            forecaster = Forecaster(int(limit), total_steps=run.total_steps, **_predicted(session, stream))
            known = session.scalar(select(Alert).where(Alert.stream_id == stream.id).order_by(Alert.id.desc()).limit(1))
        watch = Watch(run.id, forecaster)
        if known is not None:
            self._read(stream, watch, now)
            watch.alert = _state_of(known)
        self._watches[stream.id] = watch
        return watch

    def _read(self, stream: Stream, watch: Watch, now: float) -> list[tuple[AlertState, Forecast]]:
        """Feed the new chunks; returns the alert states passed through, each with the forecast that caused it."""
        changes: list[tuple[AlertState, Forecast]] = []
        with self._database.read() as session:
            for seq, columns in read_samples(session, stream.id, watch.read_seq):
                for forecast in feed(watch.forecaster, columns):
                    after = observe(watch.alert, forecast.level, now)
                    if (after.state, after.severity) != (watch.alert.state, watch.alert.severity):
                        changes.append((after, forecast))
                    watch.alert, watch.newest = after, forecast
                watch.read_seq = seq
        watch.chunks = stream.chunks
        return changes

    def _write(self, stream: Stream, watch: Watch, changes: list[tuple[AlertState, Forecast]], now: float) -> None:
        newest = watch.newest
        paged = [change for change in changes if change[0].state not in ("ok", "pending")]
        if not paged and (newest is None or not _is_news(watch.told, newest)):
            return
        with self._database.write() as session:
            lock_run(session, stream.run_id)
            for state, forecast in paged:
                add_forecast(session, stream, forecast, now)
                self._record(session, stream, state, forecast, now)
            if newest is not None and (not paged or _is_news(paged[-1][1], newest)):
                add_forecast(session, stream, newest, now)
        watch.told = newest

    def _record(self, session: Session, stream: Stream, state: AlertState, forecast: Forecast, now: float) -> None:
        facts = _facts(forecast)
        alert = next((item for item in open_alerts(session, stream.run_id) if item.stream_id == stream.id), None)
        rule = RULES["oom_forecast"]
        if alert is None:
            if state.state != "firing":
                return
            alert = open_alert(
                session, run_id=stream.run_id, stream_id=stream.id, rule=rule.name, severity=state.severity, state="firing",
                step=forecast.step, summary=rule.summarize(facts), data=facts, now=now,
            )  # fmt: skip
            reason = f"forecast {forecast.level}: {rule.summarize(facts)}"
            add_transition(session, alert, from_state="ok", to_state="pending", reason=reason, now=now)
            add_transition(
                session, alert, from_state="pending", to_state="firing", reason=reason, now=now, channels=self._channels
            )
            return
        if state.state == "firing" and alert.severity in ("critical", state.severity):
            return  # another worker was quicker
        changes: dict[str, Any] = {"state": state.state, "severity": state.severity, "step": forecast.step}
        reason = "the forecasts have been calm since"
        if state.state == "firing":
            changes |= {"summary": rule.summarize(facts), "data": facts}
            reason = f"forecast {forecast.level}: {rule.summarize(facts)}"
        before = alert.state
        if change_alert(session, alert, now=now, **changes):
            add_transition(
                session, alert, from_state=before, to_state=state.state, reason=reason, now=now, channels=self._channels
            )

    # -- closing what belongs to ended runs ----------------------------------------------------------------------------

    def _to_close(self, followed: set[int]) -> list[str]:
        """Runs with a launch that has ended and still has a watch, an open alert, or an end that nobody has heard of."""
        gone = [stream_id for stream_id in self._watches if stream_id not in followed]
        with self._database.read() as session:
            watched = session.scalars(select(Stream.run_id).where(Stream.id.in_(gone))) if gone else ()
            found = list(dict.fromkeys([*watched, *open_but_over(session), *ended_unheard(session)]))
        for stream_id in gone:
            if self._watches[stream_id].run_id not in found:
                del self._watches[stream_id]  # the run was deleted
        return found

    def _close(self, run_id: str, now: float) -> bool:
        with self._database.read() as session:
            streams = list(session.scalars(select(Stream).where(Stream.run_id == run_id)))
        for stream in streams:
            watch = self._watches.pop(stream.id, None)
            if watch is not None and stream.is_current and watch.chunks != stream.chunks:
                self._write(stream, watch, self._read(stream, watch, now), now)
        with self._database.write() as session:
            end_alerts(session, lock_run(session, run_id), self._channels, now)
        return True


def _predicted(session: Session, stream: Stream) -> dict[str, Any]:
    """What the newest prediction for this stream's device adds to its forecaster."""
    for prediction in list_predictions(session, stream.run_id):
        if (prediction.rank, prediction.device) == (stream.rank, stream.device):
            return {"predicted_peak_bytes": prediction.peak_allocated_bytes}
    return {}


def _state_of(alert: Alert) -> AlertState:
    """The state that goes on from the stored alert; a closed one is over, and the next is a new one."""
    if alert.closed_at is not None:
        return AlertState()
    return AlertState("firing", "critical" if alert.severity == "critical" else "warning", 0, alert.opened_at)


def _facts(forecast: Forecast) -> dict[str, Any]:
    return asdict(forecast)


def _is_news(told: Forecast | None, newest: Forecast) -> bool:
    """Whether the answer changed enough to be kept: another level or cause, or an ETA that moved by a twentieth of what is left."""
    if told is None or (told.level, told.cause) != (newest.level, newest.cause):
        return True
    if told.eta_step is None or newest.eta_step is None:
        return told.eta_step is not newest.eta_step
    return abs(newest.eta_step - told.eta_step) > MATERIAL_ETA_CHANGE * max(1.0, told.eta_step - told.step)
