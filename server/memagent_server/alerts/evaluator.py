"""Evaluation of running runs: new samples become forecasts and alerts in the store.

1. Each current device stream of a running run has a `StreamEvaluation`: a forecaster, alert states,
   and the position up to which it has read.
2. A turn reads the heads of all streams, then the new samples of those that moved, many streams per
   query.
3. Results are written together (`result_writer`): a restarted worker, or a second one on the same
   database, decides nothing twice.
4. Rules about whole runs (one rank against the others, a stalled run) are evaluated every few
   seconds, with or without new samples, with projects' rules about columns (`column_rules`), and
   scripts' own alerts in each turn (`script_alerts`).
5. When a run has ended, its streams are read to the end, and its alerts are closed (`run_end`).
6. A run that can't be evaluated is retried at growing intervals, and stops no other run.
7. Every few hundred samples the state of a forecaster is saved, so that another worker can take
   over without reading the whole past.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest
from itertools import groupby
from typing import Any

from memagent.errors import WireError
from memagent.forecast import Hints
from memagent.forecast.replay_columns import FORECAST_COLUMNS
from memagent_server.alerts.column_rules import ColumnRuleEvaluator
from memagent_server.alerts.hint_reader import RunHints, read_new_hints, secondary_hosts
from memagent_server.alerts.milestones import MilestoneWriter
from memagent_server.alerts.result_writer import ResultWriter, StreamResult
from memagent_server.alerts.rule_config import Policies, read_policies
from memagent_server.alerts.run_end import UnreportedDeaths, end_alerts
from memagent_server.alerts.run_rules import RunRules, isolated
from memagent_server.alerts.script_alerts import ScriptAlertWriter
from memagent_server.alerts.sharding import AllShards, LostShards, Share
from memagent_server.alerts.stream_state import (
    StreamEvaluation,
    evaluate_chunks,
    restore_evaluation,
    start_evaluation,
)
from memagent_server.store.alerts import runs_with_stale_alerts
from memagent_server.store.engine import Database, Session
from memagent_server.store.evaluation import (
    PendingChunk,
    RunningRun,
    StreamHead,
    delete_ended_states,
    get_forecaster_states,
    get_marks,
    heads_of_run,
    heads_of_running,
    latest_of,
    read_pending,
    running_runs,
)
from memagent_server.store.history import StoredChunk
from memagent_server.store.packing import unseal
from memagent_server.store.runs import get_run, lock_run, lock_runs

log = logging.getLogger(__name__)

STREAMS_PER_READ = 256
"""Streams that are read together; all of a run's are, so that its ranks share one notification."""
SAVE_EVERY_SAMPLES = 500
"""Samples of a stream after which its forecaster's state is saved again."""
MAX_SAVES_PER_TURN = 64
PRUNE_EVERY_S = 3_600.0
PRUNE_KEY = "recollections"
"""Key whose holder prunes saved states of forecasters that aren't needed any more."""
MAX_TURNS_SKIPPED = 256
"""Longest interval, in turns, at which a run that can't be evaluated is retried."""


class Evaluator:
    """Evaluation by one worker; `channels` get the notifications, `share` limits the runs."""

    def __init__(
        self, database: Database, channels: Collection[str], share: Share | None = None
    ) -> None:
        self._database = database
        self._channels = tuple(channels)
        self._share = share or AllShards()
        self._writer = ResultWriter(database, channels, self._share)
        self._deaths = UnreportedDeaths()
        self._evaluations: dict[int, StreamEvaluation] = {}
        self._run_rules = RunRules(database, self._share, self._writer)
        self._column_rules = ColumnRuleEvaluator(database, self._writer)
        self._script_alerts = ScriptAlertWriter(database, channels, self._share)
        self._milestones = MilestoneWriter(database, channels, self._share)
        self._hints: dict[str, RunHints] = {}
        self._secondary_hosts: set[int] = set()
        self._without_limit: dict[int, StreamHead] = {}
        """Streams whose limit is unknown, as they were when last read."""
        self._policies = Policies([])
        self._failures: dict[str, tuple[int, int]] = {}
        """(number of failures, turn of the next attempt) of runs that couldn't be evaluated."""
        self._turn = 0
        self._pruned_at = float("-inf")

    def turn(self, now: float) -> bool:
        """Evaluate everything new; return whether there was anything."""
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
        is_busy = False
        for batch in self._moved_streams(streams):
            is_busy = self._evaluate_streams(batch, runs, now) or is_busy
        self._run_rules.turn(runs, streams, self._evaluations, self._policies, now)
        self._column_rules.turn(runs, self._policies, now)
        # before ended runs are closed: an alert of a script's last moment must notify people
        is_busy = self._script_alerts.turn(self._policies, now) or is_busy
        is_busy = self._milestones.turn(self._policies, now) or is_busy
        followed = {stream.id for stream in streams}
        for run_id in self._runs_to_close(followed, now):
            with isolated(f"run {run_id}"):
                self._close_run(run_id, followed, now)
                is_busy = True
        self._forget_other_runs(runs)
        self.save_evaluations(MAX_SAVES_PER_TURN)
        # the wall clock may be set back: a negative age counts as due
        if not 0.0 <= now - self._pruned_at < PRUNE_EVERY_S and self._share.holds(PRUNE_KEY):
            self._pruned_at = now
            with self._database.write() as session:
                delete_ended_states(session)
        return is_busy

    # -- streams of running runs -------------------------------------------------------------------

    def _moved_streams(self, streams: Iterable[StreamHead]) -> Iterator[list[StreamHead]]:
        """Yield batches of streams with new samples; all streams of a run are in one batch.

        A run that failed before is a batch by itself, when its next attempt is due.
        """
        moved = [stream for stream in streams if self._has_moved(stream)]
        moved.sort(key=lambda stream: stream.run_id)
        batch: list[StreamHead] = []
        for run_id, run_streams in groupby(moved, key=lambda stream: stream.run_id):
            failures, retry_at = self._failures.get(run_id, (0, 0))
            if failures and self._turn >= retry_at:
                yield list(run_streams)
            elif not failures:
                batch += run_streams
                if len(batch) >= STREAMS_PER_READ:
                    yield batch
                    batch = []
        if batch:
            yield batch

    def _has_moved(self, stream: StreamHead) -> bool:
        evaluation = self._evaluations.get(stream.id)
        if evaluation is None or not evaluation.belongs_to(stream):
            return stream.chunks > 0 and self._without_limit.get(stream.id) != stream
        return evaluation.chunks != stream.chunks

    def _evaluate_streams(
        self, streams: Sequence[StreamHead], runs: Mapping[str, RunningRun], now: float
    ) -> bool:
        """Read new samples and write the results; return whether there were any."""
        try:
            results, failed = self._read_results(streams, runs, now)
            outcomes = self._writer.write(results, now)
        except Exception:
            # The evaluations may be ahead of the store now: start over from there.
            self._drop(stream.id for stream in streams)
            raise
        for result in results:
            outcome = outcomes.get(result.stream.id)
            if outcome is not None and not outcome.apply_to(result.evaluation):
                failed.add(result.stream.id)
        self._drop(failed)
        self._note_failures(streams, failed)
        return any(result.stream.id not in failed for result in results)

    def _read_results(
        self, streams: Sequence[StreamHead], runs: Mapping[str, RunningRun], now: float
    ) -> tuple[list[StreamResult], set[int]]:
        """Return the results of new samples, and the streams that couldn't be evaluated."""
        by_id = {stream.id: stream for stream in streams}
        run_hints = {
            stream.run_id: self._hints.setdefault(stream.run_id, RunHints()) for stream in streams
        }
        results = []
        with self._database.read() as session:
            read_new_hints(session, run_hints)
            latest = latest_of(session, list(by_id))
            failed = self._start_evaluations(session, streams, runs, latest)
            read_seqs = {
                stream_id: self._evaluations[stream_id].read_seq
                for stream_id in by_id
                if stream_id in self._evaluations
            }
            for stream_id, chunks in _by_stream(read_pending(session, read_seqs), read_seqs):
                stream = by_id[stream_id]
                # removed again below: only an error leaves it in the set
                failed.add(stream_id)
                with isolated(_describe(stream)):
                    changes = evaluate_chunks(
                        stream,
                        self._evaluations[stream_id],
                        _unpack(stream, chunks),
                        latest.get(stream_id, {}),
                        self._hints_for(stream, runs),
                        self._policies.of(runs[stream.run_id].project),
                        now,
                    )
                    results.append(StreamResult(stream, self._evaluations[stream_id], changes))
                    failed.discard(stream_id)
        return results, failed

    def _start_evaluations(
        self,
        session: Session,
        streams: Sequence[StreamHead],
        runs: Mapping[str, RunningRun],
        latest: Mapping[int, Mapping[str, Any]],
    ) -> set[int]:
        """Start the evaluation of new streams with a known limit; return those that failed."""
        new_streams = [
            stream
            for stream in streams
            if stream.id not in self._evaluations
            or not self._evaluations[stream.id].belongs_to(stream)
        ]
        self._drop(stream.id for stream in new_streams)
        marks = get_marks(session, [stream.id for stream in new_streams]) if new_streams else {}
        saved = get_forecaster_states(session, marks) if marks else {}
        failed: set[int] = set()
        for stream in new_streams:
            limit = stream.limit_bytes or latest.get(stream.id, {}).get("limit_bytes")
            if not limit:
                self._without_limit[stream.id] = stream
                continue
            is_secondary = stream.id in self._secondary_hosts
            evaluation = None
            if stream.id in saved:
                seq, state = saved[stream.id]
                with isolated(_describe(stream)):
                    evaluation = restore_evaluation(
                        stream,
                        int(limit),
                        marks[stream.id],
                        seq,
                        state,
                        is_secondary_host=is_secondary,
                    )
            if evaluation is None:
                with isolated(_describe(stream)):
                    evaluation = start_evaluation(
                        session,
                        stream,
                        int(limit),
                        self._hints_for(stream, runs),
                        marks.get(stream.id),
                        is_secondary_host=is_secondary,
                    )
            if evaluation is None:
                failed.add(stream.id)
            else:
                self._evaluations[stream.id] = evaluation
        return failed

    def _hints_for(self, stream: StreamHead, runs: Mapping[str, RunningRun]) -> Hints:
        return self._hints[stream.run_id].hints(stream, runs[stream.run_id].total_steps)

    def _note_failures(self, streams: Iterable[StreamHead], failed: Collection[int]) -> None:
        for run_id in {stream.run_id for stream in streams if stream.id not in failed}:
            self._failures.pop(run_id, None)
        for run_id in {stream.run_id for stream in streams if stream.id in failed}:
            failures = self._failures.get(run_id, (0, 0))[0] + 1
            wait = min(2 ** (failures - 1), MAX_TURNS_SKIPPED)
            self._failures[run_id] = (failures, self._turn + wait)

    def _drop(self, stream_ids: Iterable[int]) -> None:
        for stream_id in stream_ids:
            self._evaluations.pop(stream_id, None)
            self._without_limit.pop(stream_id, None)

    def _forget_other_runs(self, runs: Collection[str]) -> None:
        """Drop the state of runs that have ended or belong to another worker."""
        self._run_rules.forget_other_runs(runs)
        for states in (self._hints, self._failures):
            for run_id in [run_id for run_id in states if run_id not in runs]:
                del states[run_id]
        for stream in list(self._without_limit.values()):
            if stream.run_id not in runs:
                del self._without_limit[stream.id]

    # -- saved state for other workers -------------------------------------------------------------

    def save_evaluations(self, limit: int) -> int:
        """Save the evaluations that have read most since their last save; return their number."""
        unsaved = [
            (evaluation.read_seq - evaluation.saved_seq, stream_id)
            for stream_id, evaluation in self._evaluations.items()
            if evaluation.read_seq - evaluation.saved_seq >= SAVE_EVERY_SAMPLES
            and self._share.holds(evaluation.run_id)
        ]
        chosen = {
            stream_id: self._evaluations[stream_id] for _, stream_id in nlargest(limit, unsaved)
        }
        if chosen:
            with suppress(LostShards):  # the next turn drops the runs that were lost
                self._writer.save_evaluations(chosen)
        for evaluation in chosen.values():
            evaluation.saved_seq = evaluation.read_seq
        return len(chosen)

    # -- runs that have ended ----------------------------------------------------------------------

    def _runs_to_close(self, followed: Collection[int], now: float) -> list[str]:
        """Return runs with an ended launch that still has an evaluation or an open alert.

        Dead runs without a notification are among them.
        """
        unfollowed = {
            stream_id: evaluation
            for stream_id, evaluation in self._evaluations.items()
            if stream_id not in followed
        }
        run_ids = dict.fromkeys(evaluation.run_id for evaluation in unfollowed.values())
        with self._database.read() as session:
            unreported = self._deaths.find(session, self._policies, now)
            candidates = dict.fromkeys([*run_ids, *runs_with_stale_alerts(session), *unreported])
        # another worker has taken these over, and closes them
        moved_ids = [run_id for run_id in run_ids if not self._share.holds(run_id)]
        self._drop(self._evaluations_of(moved_ids))
        return [run_id for run_id in candidates if self._share.holds(run_id)]

    def _close_run(self, run_id: str, followed: Collection[int], now: float) -> None:
        """Read streams that ended to their end, and close their alerts."""
        with self._database.read() as session:
            run = get_run(session, run_id)
            streams = heads_of_run(session, run_id) if run is not None else []
        # The run may have ended since this turn began to follow it.
        has_ended = run is None or run.status != "running"
        ended = [
            stream_id
            for stream_id in self._evaluations_of((run_id,))
            if has_ended or stream_id not in followed
        ]
        unread = [stream for stream in streams if stream.id in ended and self._has_moved(stream)]
        if run is not None and unread:
            self._evaluate_streams(unread, {run_id: RunningRun(run.project, run.total_steps)}, now)
        self._drop(ended)
        if run is None:
            return
        with self._database.write() as session:
            self._share.confirm(session, (run_id,))
            if lock_runs(session, (run_id,)):
                run = lock_run(session, run_id)
                end_alerts(session, run, self._policies.of(run.project), self._channels, now)

    def _evaluations_of(self, run_ids: Collection[str]) -> list[int]:
        return [
            stream_id
            for stream_id, evaluation in self._evaluations.items()
            if evaluation.run_id in run_ids
        ]


def _describe(stream: StreamHead) -> str:
    return f"run {stream.run_id}, rank {stream.rank}, {stream.device}"


def _by_stream(
    unread: Iterable[PendingChunk], stream_ids: Iterable[int]
) -> Iterator[tuple[int, Iterable[PendingChunk]]]:
    """Yield each stream with its chunks; streams without any come last."""
    remaining = dict.fromkeys(stream_ids)
    for stream_id, chunks in groupby(unread, key=lambda chunk: chunk.stream_id):
        del remaining[stream_id]
        yield stream_id, chunks
    for stream_id in remaining:
        yield stream_id, ()


def _unpack(stream: StreamHead, chunks: Iterable[PendingChunk]) -> Iterator[StoredChunk]:
    """Yield the columns a forecaster reads; skip damaged chunks, later ones can still warn."""
    for chunk in chunks:
        try:
            columns = unseal(chunk.packed, only=FORECAST_COLUMNS)
            if chunk.evaluated_rows:
                # the first samples of the chunk have been evaluated already
                columns = {name: values[chunk.evaluated_rows :] for name, values in columns.items()}
            yield StoredChunk(chunk.seq, chunk.received_at, columns)
        except WireError as error:
            log.error("chunk %s of %s cannot be read: %s", chunk.seq, _describe(stream), error)
