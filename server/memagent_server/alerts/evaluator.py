"""Feeds new samples of running runs to their forecasters, and turns what rules make of them into forecasts and alerts in the store.

1. Each current device stream of a running run has a `StreamEvaluation`: a forecaster, alert states, and how far it has read.
2. A turn asks for the heads of all streams, and reads what is new of those that have moved, many streams a query.
3. What is decided is written together (`decisions`): a worker that was restarted, or a second one on the same database, adds nothing
   to what is decided already.
4. Rules about whole runs (one rank against the others, a run that stands still) are asked every few seconds, new samples or not.
5. When the run has ended, its streams are read to the end; what follows for its alerts is in `endings`.
6. A run that cannot be evaluated is tried again after ever more turns, and stops no other.
7. Every few hundred samples what a forecaster knows is kept, so that a worker that takes over need not read all of the past.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from heapq import nlargest
from itertools import groupby
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from memagent.errors import WireError
from memagent.forecast import Hints
from memagent.forecast.replay_columns import FORECAST_COLUMNS
from memagent_server.alerts.hint_reader import RunHints, listen, secondary_hosts
from memagent_server.alerts.incident_updates import IncidentTransaction
from memagent_server.alerts.result_writer import ResultWriter, StreamResult
from memagent_server.alerts.rule_config import Policies, read_policies
from memagent_server.alerts.run_end import RunEndings, end_alerts
from memagent_server.alerts.run_rules import RunEvaluation, alive_ranks, decide, looks_at
from memagent_server.alerts.sharding import AllShards, LostShards, Share
from memagent_server.alerts.stream_state import StreamEvaluation, begin_watch, read_new, resume
from memagent_server.store.alerts import open_alerts_by_run, open_but_over
from memagent_server.store.db_errors import trouble_of
from memagent_server.store.engine import Database
from memagent_server.store.evaluation_state import forget_ended, get_marks, get_recollections
from memagent_server.store.history import StoredChunk
from memagent_server.store.incidents import woken
from memagent_server.store.models import Incident
from memagent_server.store.packing import unseal
from memagent_server.store.pending_samples import (
    PendingChunks,
    Running,
    StreamHead,
    heads_of_run,
    heads_of_running,
    latest_of,
    read_unread,
    running_runs,
)
from memagent_server.store.runs import get_run, lock_run, lock_runs

Made = TypeVar("Made")
log = logging.getLogger(__name__)

LOOK_AT_RUNS_S = 5.0
STREAMS_AT_ONCE = 256
"""Streams that are read together; all of a run's are, so that its ranks make one message."""
REMEMBER_EVERY, REMEMBERED_AT_ONCE = 500, 64
"""Samples of a stream after which its forecaster's state is kept anew, and streams whose states are kept in one turn."""
TIDY_EVERY_S, TIDYING = 3_600.0, "recollections"
"""How often one worker lets go of what nobody will take up, and the key that says which one."""
MOST_TURNS_PASSED = 256
"""Turns after which a run that could not be evaluated is tried again, at most."""


class Evaluator:
    """One worker's evaluation; `channels` are the names of the channels that get notifications, `share` what it may decide on."""

    def __init__(
        self, database: Database, channels: Collection[str], share: Share | None = None
    ) -> None:
        self._database, self._channels, self._share = (
            database,
            tuple(channels),
            share or AllShards(),
        )
        self._scribe = ResultWriter(database, channels, self._share)
        self._ends = RunEndings()
        self._watches: dict[int, StreamEvaluation] = {}
        self._told: dict[str, RunHints] = {}
        self._secondary_hosts: set[int] = set()
        self._blind: dict[int, StreamHead] = {}
        """Streams whose limit is not known, as they were then."""
        self._runs: dict[str, RunEvaluation] = {}
        self._policies = Policies([])
        self._failures: dict[str, tuple[int, int]] = {}
        """Of runs that could not be evaluated: how often, and the turn to try again at."""
        self._turn = 0
        self._looked_at = self._tidied_at = float("-inf")

    def turn(self, now: float) -> bool:
        """Evaluate everything that is new; returns whether there was anything."""
        self._turn += 1
        with self._database.read() as session:
            self._policies = read_policies(session)
            runs = {
                run_id: run
                for run_id, run in running_runs(session).items()
                if self._share.holds(run_id)
            }
            streams = [stream for stream in heads_of_running(session) if stream.run_id in runs]
        self._secondary_hosts = secondary_hosts(streams)
        busy = False
        for together in self._with_news(streams):
            busy = self._follow(together, runs, now) or busy
        if not 0.0 <= now - self._looked_at < LOOK_AT_RUNS_S:
            self._looked_at = now
            self._look_at_runs(runs, streams, now)
        followed = {stream.id for stream in streams}
        for run_id in self._to_close(followed, now):
            busy = self._try(run_id, self._close, run_id, followed, now) or busy
        self._forget(runs)
        self.remember(REMEMBERED_AT_ONCE)
        if not 0.0 <= now - self._tidied_at < TIDY_EVERY_S and self._share.holds(TIDYING):
            self._tidied_at = now
            with self._database.write() as session:
                forget_ended(session)
        return busy

    def _try(self, run_id: str, work: Callable[..., object], *arguments: object) -> bool:
        """One run that fails must not stop the others, but a database that fails stops them all; returns whether it did not fail."""
        try:
            work(*arguments)
        except LostShards:
            return False
        except Exception as error:
            if trouble_of(error) is not None:
                raise
            log.exception("run %s could not be evaluated", run_id)
            return False
        return True

    # -- following running streams -------------------------------------------------------------------------------------

    def _with_news(self, streams: Iterable[StreamHead]) -> Iterator[list[StreamHead]]:
        """Streams that have moved since they were read, whole runs together."""
        moved = sorted(
            (stream for stream in streams if self._has_moved(stream)),
            key=lambda stream: stream.run_id,
        )
        together: list[StreamHead] = []
        for run_id, of_run in groupby(moved, key=lambda stream: stream.run_id):
            times, again_at = self._failures.get(run_id, (0, 0))
            if times and self._turn >= again_at:
                yield list(of_run)
            elif not times:
                together += of_run
                if len(together) >= STREAMS_AT_ONCE:
                    yield together
                    together = []
        if together:
            yield together

    def _has_moved(self, stream: StreamHead) -> bool:
        watch = self._watches.get(stream.id)
        if watch is None or not watch.is_of(stream):
            return stream.chunks > 0 and self._blind.get(stream.id) != stream
        return watch.chunks != stream.chunks

    def _follow(self, streams: Sequence[StreamHead], runs: dict[str, Running], now: float) -> bool:
        """Read what is new of these streams, and write what follows from it; returns whether anything did."""
        try:
            decided, failed = self._read(streams, runs, now)
            failed |= self._scribe.write(decided, now)
        except Exception:
            self._drop(
                stream.id for stream in streams
            )  # they are ahead of the store: begin anew from there
            raise
        self._drop(failed)
        self._note_failures(streams, failed)
        return any(one.stream.id not in failed for one in decided)

    def _read(
        self, streams: Sequence[StreamHead], runs: dict[str, Running], now: float
    ) -> tuple[list[StreamResult], set[int]]:
        """What follows from what is new, and the streams of which nothing can be told."""
        by_id = {stream.id: stream for stream in streams}
        with self._database.read() as session:
            told = {
                stream.run_id: self._told.setdefault(stream.run_id, RunHints())
                for stream in streams
            }
            listen(session, told)
            latest = latest_of(session, list(by_id))
            failed = self._begin(session, streams, runs, latest)
            after = {
                stream_id: self._watches[stream_id].read_seq
                for stream_id in by_id
                if stream_id in self._watches
            }
            decided = []
            for stream_id, chunks in _by_stream(read_unread(session, after), after):
                stream = by_id[stream_id]
                one = self._guarded(
                    stream, self._decide, stream, chunks, latest.get(stream_id, {}), runs, now
                )
                if one is None:
                    failed.add(stream_id)
                else:
                    decided.append(one)
        return decided, failed

    def _begin(
        self,
        session: Session,
        streams: Sequence[StreamHead],
        runs: dict[str, Running],
        latest: dict[int, dict[str, Any]],
    ) -> set[int]:
        """Begin a watch for each stream that has none, where its limit is known; returns those that failed."""
        fresh = [
            stream
            for stream in streams
            if stream.id not in self._watches or not self._watches[stream.id].is_of(stream)
        ]
        self._drop(stream.id for stream in fresh)
        marks = get_marks(session, [stream.id for stream in fresh]) if fresh else {}
        recollections = get_recollections(session, marks) if marks else {}
        failed = set()
        for stream in fresh:
            limit = stream.limit_bytes or latest.get(stream.id, {}).get("limit_bytes")
            if not limit:
                self._blind[stream.id] = stream
                continue
            if stream.id in recollections:
                resumed = self._guarded(
                    stream, resume, stream, int(limit), marks[stream.id], *recollections[stream.id], is_secondary_host=stream.id in self._secondary_hosts
                )  # fmt: skip
                if resumed is not None:
                    self._watches[stream.id] = resumed
                    continue
            hints = self._hints(stream, runs)
            begun = self._guarded(
                stream, begin_watch, session, stream, int(limit), hints, marks.get(stream.id), is_secondary_host=stream.id in self._secondary_hosts
            )  # fmt: skip
            if begun is None:
                failed.add(stream.id)
            else:
                self._watches[stream.id] = begun
        return failed

    def _decide(
        self,
        stream: StreamHead,
        chunks: Iterable[PendingChunks],
        latest: dict[str, Any],
        runs: dict[str, Running],
        now: float,
    ) -> StreamResult:
        watch, hints, policy = (
            self._watches[stream.id],
            self._hints(stream, runs),
            self._policies.of(runs[stream.run_id].project),
        )
        return StreamResult(
            stream,
            watch,
            read_new(stream, watch, _unpacked(stream, chunks), latest, hints, policy, now),
        )

    def _hints(self, stream: StreamHead, runs: dict[str, Running]) -> Hints:
        return self._told[stream.run_id].hints(stream, runs[stream.run_id].total_steps)

    def _guarded(
        self, stream: StreamHead, work: Callable[..., Made], *arguments: Any, **named: Any
    ) -> Made | None:
        """A stream that fails must not stop the others; a database that fails stops them all."""
        try:
            return work(*arguments, **named)
        except Exception as error:
            if trouble_of(error) is not None:
                raise
            log.exception(
                "run %s, rank %s, %s could not be evaluated",
                stream.run_id,
                stream.rank,
                stream.device,
            )
            return None

    def _note_failures(self, streams: Iterable[StreamHead], failed: Collection[int]) -> None:
        for run_id in {stream.run_id for stream in streams if stream.id not in failed}:
            self._failures.pop(run_id, None)
        for run_id in {stream.run_id for stream in streams if stream.id in failed}:
            times = self._failures.get(run_id, (0, 0))[0] + 1
            self._failures[run_id] = (times, self._turn + min(2 ** (times - 1), MOST_TURNS_PASSED))

    def _drop(self, stream_ids: Iterable[int]) -> None:
        for stream_id in stream_ids:
            self._watches.pop(stream_id, None)
            self._blind.pop(stream_id, None)

    def _forget(self, runs: Collection[str]) -> None:
        """Let go of what is kept of runs that run no more, or are another worker's by now."""
        for kept in (self._told, self._failures, self._runs):
            for run_id in [run_id for run_id in kept if run_id not in runs]:
                del kept[run_id]
        for stream_id in [
            stream_id for stream_id, stream in self._blind.items() if stream.run_id not in runs
        ]:
            del self._blind[stream_id]

    # -- what another worker would need ----------------------------------------------------------------------------------

    def remember(self, most: int) -> int:
        """Keep what the watches know that have read most since it was last kept; returns of how many."""
        grown = [
            (watch.read_seq - watch.remembered_seq, stream_id)
            for stream_id, watch in self._watches.items()
            if watch.read_seq - watch.remembered_seq >= REMEMBER_EVERY
            and self._share.holds(watch.run_id)
        ]
        chosen = {stream_id: self._watches[stream_id] for _, stream_id in nlargest(most, grown)}
        if chosen:
            with suppress(LostShards):  # the next turn knows what is left
                self._scribe.remember(chosen)
        for watch in chosen.values():
            watch.remembered_seq = watch.read_seq
        return len(chosen)

    # -- rules about whole runs --------------------------------------------------------------------------------------

    def _look_at_runs(
        self, runs: dict[str, Running], streams: Iterable[StreamHead], now: float
    ) -> None:
        of_run: dict[str, list[tuple[StreamHead, StreamEvaluation | None]]] = {}
        for stream in streams:
            of_run.setdefault(stream.run_id, []).append((stream, self._watches.get(stream.id)))
        with self._database.read() as session:
            alive = alive_ranks(session, now)
            awake = [
                incident.id
                for incident in woken(session, now)
                if self._share.holds(incident.run_id)
            ]
        looks = {}
        for run_id, mine in of_run.items():
            policy = self._policies.of(runs[run_id].project)
            looks[run_id] = list(looks_at(mine, alive.get(run_id, ()), policy, now))
        unknown = [
            run_id
            for run_id, of in looks.items()
            if not self._runs.setdefault(run_id, RunEvaluation()).knows(of)
        ]
        with self._database.read() as session:
            stored = open_alerts_by_run(session, unknown)
        for run_id, of in looks.items():
            changes = decide(self._runs[run_id], of, stored.get(run_id, ()), now)
            if changes:
                self._try(run_id, self._scribe.enter, run_id, changes, now)
        for incident_id in awake:
            self._remind(incident_id, now)

    def _remind(self, incident_id: int, now: float) -> None:
        with self._database.write() as session:
            found = session.get(Incident, incident_id)
            if found is None:
                return
            self._share.confirm(session, (found.run_id,))
            lock_run(session, found.run_id)
            session.refresh(found)
            if (
                found.state == "firing"
                and found.snoozed_until is not None
                and found.snoozed_until <= now
            ):
                ledger = IncidentTransaction(session, self._channels, now)
                ledger.remind(found)
                ledger.settle()

    # -- closing what belongs to ended runs ----------------------------------------------------------------------------

    def _to_close(self, followed: Collection[int], now: float) -> list[str]:
        """Runs with a launch that has ended and still has a watch, an open alert, or an end that nobody has heard of."""
        gone = dict.fromkeys(
            watch.run_id for stream_id, watch in self._watches.items() if stream_id not in followed
        )
        with self._database.read() as session:
            unheard = self._ends.unheard(session, self._policies, now)
            found = dict.fromkeys([*gone, *open_but_over(session), *unheard])
        for run_id in gone:
            if not self._share.holds(run_id):
                self._drop(
                    [
                        stream_id
                        for stream_id, watch in self._watches.items()
                        if watch.run_id == run_id
                    ]
                )
        return [run_id for run_id in found if self._share.holds(run_id)]

    def _close(self, run_id: str, followed: Collection[int], now: float) -> None:
        """Read to the end what is not followed any more, and end the alerts of what is over."""
        with self._database.read() as session:
            run = get_run(session, run_id)
            streams = heads_of_run(session, run_id) if run is not None else []
        is_over = (
            run is None or run.status != "running"
        )  # it may have ended since this turn began to follow it
        mine = [
            key
            for key, watch in self._watches.items()
            if watch.run_id == run_id and (is_over or key not in followed)
        ]
        unread = [stream for stream in streams if stream.id in mine and self._has_moved(stream)]
        if run is not None and unread:
            self._follow(unread, {run_id: Running(run.project, run.total_steps)}, now)
        self._drop(mine)
        if run is None:
            return
        with self._database.write() as session:
            self._share.confirm(session, (run_id,))
            if lock_runs(session, (run_id,)):
                run = lock_run(session, run_id)
                end_alerts(session, run, self._policies.of(run.project), self._channels, now)


def _by_stream(
    unread: Iterable[PendingChunks], stream_ids: Iterable[int]
) -> Iterator[tuple[int, Iterable[PendingChunks]]]:
    """Each stream with its chunks, those that have none last."""
    left = dict.fromkeys(stream_ids)
    for stream_id, chunks in groupby(unread, key=lambda chunk: chunk.stream_id):
        del left[stream_id]
        yield stream_id, chunks
    for stream_id in left:
        yield stream_id, ()


def _unpacked(stream: StreamHead, chunks: Iterable[PendingChunks]) -> Iterator[StoredChunk]:
    """What a forecaster reads of them. A chunk that is damaged is passed over: those that come after it can still warn."""
    for chunk in chunks:
        try:
            columns = unseal(chunk.packed, only=FORECAST_COLUMNS)
            if chunk.known:
                columns = {name: values[chunk.known :] for name, values in columns.items()}
            yield StoredChunk(chunk.seq, chunk.received_at, columns)
        except WireError as error:
            log.error(
                "chunk %s of run %s, rank %s, %s cannot be read: %s", chunk.seq, stream.run_id, stream.rank, stream.device, error
            )  # fmt: skip
