"""Evaluation of a whole fleet by the worker, in one process: a flush of 10 samples from each of
8,000 ranks is read, forecast and decided on.

Figures are processor time of this process, so they show what one core would take. The bare
forecaster gets the same samples in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from benchmarks.figures import Figure
from benchmarks.server.ranks import LIMIT_BYTES, RANKS_A_RUN, STEP_S, batch, columns, run_of, start
from benchmarks.server.real_server import fresh_database
from memagent.forecast import Forecaster, feed_columns
from memagent_server.alerts.evaluator import Evaluator
from memagent_server.store.engine import Database
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch

TITLE = "a forecast cycle of 8,000 ranks, on one core"
RANKS, RANKS_QUICK = 8_000, 80
PAST_ROWS, FLUSH_ROWS = 60, 10
CYCLES = 3
GOAL_S = 10.0


def measure(quick: bool) -> list[Figure]:
    """Start with a short history, run a few cycles, and count the last one."""
    ranks = RANKS_QUICK if quick else RANKS
    scale = RANKS / ranks
    note = f"{ranks} ranks, times {scale:.0f}" if quick else ""
    began_at = time.time() - 3600.0
    with fresh_database() as database:
        _start(database, range(ranks), began_at)
        _flush(database, range(ranks), 0, 0, PAST_ROWS, began_at)
        evaluator = Evaluator(database, ("webhook",))
        taken_up_s = _turn(evaluator, began_at)
        step = PAST_ROWS
        for cycle in range(1, CYCLES + 1):
            _flush(database, range(ranks), cycle, step, FLUSH_ROWS, began_at)
            step += FLUSH_ROWS
            cycle_s = _turn(evaluator, began_at + step * STEP_S)
        idle_s = _turn(evaluator, began_at + step * STEP_S + 1)
    bare_s = _bare(range(ranks), step, began_at)
    return [
        Figure("a cycle, 10 new samples each", "s", scale * cycle_s, goal=GOAL_S, note=note),
        Figure("... a sample", "us", 1e6 * cycle_s / (ranks * FLUSH_ROWS)),
        Figure("... by the bare forecaster", "x", cycle_s / bare_s),
        Figure("taking up, 60 samples each", "s", scale * taken_up_s, note=note),
        Figure("a turn without news", "ms", 1e3 * scale * idle_s, note=note),
    ]


def _start(database: Database, ranks: Iterable[int], now: float) -> None:
    with database.write() as session:
        for rank in ranks:
            start_run(session, start(rank), now)


def _flush(
    database: Database, ranks: Iterable[int], seq: int, first_step: int, rows: int, began_at: float
) -> None:
    now = began_at + (first_step + rows) * STEP_S
    for rank in ranks:
        if rank % RANKS_A_RUN == 0:
            with database.write() as session:
                for mine in range(rank, rank + RANKS_A_RUN):
                    add_batch(
                        session, run_of(mine), batch(mine, seq, first_step, rows, began_at), now
                    )


def _turn(evaluator: Evaluator, now: float) -> float:
    """Return the processor seconds of one worker turn."""
    began = time.process_time()
    evaluator.turn(now)
    return time.process_time() - began


def _bare(ranks: Iterable[int], steps: int, began_at: float) -> float:
    """Return the processor seconds of the forecaster alone for the last flush, after the same
    history.
    """
    forecasters = [(rank, Forecaster(LIMIT_BYTES)) for rank in ranks]
    for rank, forecaster in forecasters:
        for _ in feed_columns(forecaster, columns(rank, 0, steps - FLUSH_ROWS, began_at)):
            pass
    new = [
        (forecaster, columns(rank, steps - FLUSH_ROWS, FLUSH_ROWS, began_at))
        for rank, forecaster in forecasters
    ]
    began = time.process_time()
    for forecaster, sampled in new:
        for _ in feed_columns(forecaster, sampled):
            pass
    return time.process_time() - began
