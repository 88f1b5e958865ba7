"""Fit the forecaster's calibration: `python -m benchmarks.forecast.calibrate`.

Prints the figures of memagent/forecast/calibration.py. They come from the programs to tune on:
recorded on a GPU, rehearsed, and simulated. Each program has the same weight. `--held-out` also
prints how often each told probability came true in the programs held out.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from math import inf, log
from pathlib import Path
from typing import NamedTuple, get_args

from benchmarks.forecast import gpu_recorded, mechanisms, programs, reruns, simulated
from benchmarks.forecast.baselines import Finder, feed, first_page, oracle
from benchmarks.forecast.gpu_programs import GPU_PROGRAMS
from benchmarks.forecast.program_set import Kind
from benchmarks.forecast.traces import Alarm, Trace
from memagent.forecast.calibration import INTERVAL_SCALE, SCALED_CAUSES, Evidence
from memagent.forecast.predecessor import GrowthOutcome
from memagent.forecast.types import PAGING_LEVELS

TUNED_ON, HELD_OUT = "tuned on", "held out"
EACH, SEED = 3, 7
ROWS = 250
"""Rows of a run that are read: with all of them, the figures take three times as long."""
MISSED_PER_SIDE = 0.05
Weighted = list[tuple[float, float]]
"""Values with their weights."""


DISTANCES = (0.5, 1.0, 3.0, inf)
"""Upper bounds of the distances that are counted together."""
BOUNDS: dict[Evidence, tuple[float, ...]] = {
    "planned": (1.25, 2.0, 4.0, 10.0, inf),
    "lived": (inf,),
    "died": (inf,),
}
"""The same where they differ: a predecessor's end counts at any distance."""
PRIOR_PROGRAMS = 1.5
"""Programs that the mean of all growth weighs as much as, so that a few don't decide alone. From 0.5
to 5, the Brier score on programs left out changes by 0.003."""
RELIABILITY = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.01)


class Growth(NamedTuple):
    """A row of a growing run: the knowledge then, and whether the run died. `weight` adds up to 1
    for a program.
    """

    weight: float
    has_died: bool
    evidence: Evidence
    distance: float
    told: float
    is_told: bool
    """At a level above ok."""


class Outlook(NamedTuple):
    """A run without its columns, its first page, and what was known and told in growing rows."""

    run: Trace
    alarm: Alarm | None
    alarm_evidence: Evidence | None
    rows: list[tuple[Evidence, float, float, bool]]


Outlooks = tuple[list[Outlook], list[Outlook]]
"""Without and with the finder."""


def main(*, with_held_out: bool) -> None:
    with ProcessPoolExecutor() as pool:
        after_others = pool.map(after_predecessors, simulated_kinds(TUNED_ON))
        plain, with_finder = corpus(TUNED_ON, pool)
        held_out = corpus(HELD_OUT, pool) if with_held_out else None
        alarms = [(seen.run, seen.alarm) for seen in plain if seen.run.trending and seen.alarm]
        low, high = scales(alarms)
        print(f'CORPUS = "{digest()}"\nINTERVAL_SCALE = ({low:.2f}, {high:.2f})\nDEATHS = {{')
        others = list(chain.from_iterable(after_others))
    low, high = predecessor_interval(others)
    print(f"PREDECESSOR_INTERVAL = ({low:.2f}, {high:.2f})")
    rows = [*rows_of(plain, 0.5), *rows_of(with_finder, 0.5)]
    rows += [row for row in rows_of(others) if row.evidence in get_args(GrowthOutcome)]
    for evidence in get_args(Evidence):
        print(f'    "{evidence}": {deaths(rows, evidence)},')
    print("}")
    if held_out:
        plain, with_finder = held_out
        for row in reliability([*rows_of(plain, 0.5), *rows_of(with_finder, 0.5)]):
            print(" ".join(f"{value:.3f}" for value in row))


def simulated_kinds(half: str) -> list[Kind]:
    """Return the simulated programs of a half."""
    return [*programs.PROGRAMS.split()[half], *mechanisms.MECHANISMS.split()[half]]


def corpus(half: str, pool: Executor) -> Outlooks:
    """Return what is told of the runs of one half of the programs."""
    parts = list(pool.map(_simulated, simulated_kinds(half)))
    recorded = [
        run for title, runs in gpu_recorded.sets(GPU_PROGRAMS) if half in title for run in runs
    ]
    parts += pool.map(outlooks, (recorded[i : i + 10] for i in range(0, len(recorded), 10)))
    plain, with_finder = zip(*parts, strict=True)
    return list(chain.from_iterable(plain)), list(chain.from_iterable(with_finder))


def _simulated(kind: Kind) -> Outlooks:
    return outlooks(simulated.traces([kind], EACH, SEED))


def outlooks(runs: Iterable[Trace]) -> Outlooks:
    """Return what is told of runs."""
    runs = list(runs)
    return [outlook(run) for run in runs], [outlook(run, finder=oracle) for run in runs]


def after_predecessors(kind: Kind) -> list[Outlook]:
    """Return what is told of simulated runs of a program that have a predecessor."""
    runs = reruns.traces([kind], EACH, SEED)
    return [outlook(run, with_predecessor=True) for run in runs]


def outlook(run: Trace, *, finder: Finder | None = None, with_predecessor: bool = False) -> Outlook:
    """Return what is told of a run. What is known is read ROWS times, as it costs another fit."""
    every = max(1, len(run.columns["step"]) // ROWS)
    alarm, alarm_evidence, rows = None, None, []
    fed = feed(run, finder=finder, with_predecessor=with_predecessor)
    for row, (forecaster, forecast) in enumerate(fed):
        is_first_page = alarm is None and forecast.level in PAGING_LEVELS
        if not is_first_page and row % every:
            continue
        evidence = forecaster.evidence
        if is_first_page:
            alarm = first_page(forecast)
            alarm_evidence = evidence[0] if evidence else None
        if evidence and row % every == 0:
            rows.append((*evidence, forecast.oom_probability, forecast.level != "ok"))
    return Outlook(replace(run, columns={}, garbage=None), alarm, alarm_evidence, rows)


def rows_of(seen: Sequence[Outlook], weight: float = 1.0) -> list[Growth]:
    """Return the growing rows of runs. weight: that of a program."""
    counts = Counter(one.run.family for one in seen)
    return [
        Growth(weight / len(one.rows) / counts[one.run.family], one.run.death is not None, *row)
        for one in seen
        for row in one.rows
    ]


def digest() -> str:
    """Return the first digits of the hash of the recorded runs and of the simulated programs."""
    names = ("mechanisms.py", "programs.py", "reruns.py", "simulated.py")
    sources = [Path(__file__).with_name(name) for name in names]
    content = hashlib.sha256()
    for file in (gpu_recorded.FILE, gpu_recorded.REHEARSED, *sources):
        content.update(file.read_bytes())
    return content.hexdigest()[:16]


def scales(alarms: Sequence[tuple[Trace, Alarm]]) -> tuple[float, float]:
    """Return the exponents with which intervals of first pages hold, 1 or more."""
    counts = Counter(run.family for run, _ in alarms)
    lows, highs = list[tuple[float, float]](), list[tuple[float, float]]()
    for run, alarm in alarms:
        left = (run.death or 0) - alarm.step
        expected = (alarm.eta_step or 0) - alarm.step
        # a page that says "now" has hardly an interval
        if min(left, expected) < 1 or alarm.cause not in SCALED_CAUSES:
            continue
        weight = 1 / counts[run.family]
        low, high = (alarm.eta_low or 0) - alarm.step, (alarm.eta_high or 0) - alarm.step
        lows.append(
            (_excess(expected / left, expected / max(low, 1e-9), INTERVAL_SCALE[0]), weight)
        )
        highs.append((_excess(left / expected, high / expected, INTERVAL_SCALE[1]), weight))
    return quantile(lows), quantile(highs)


def predecessor_interval(seen: Sequence[Outlook]) -> tuple[float, float]:
    """Return the steps left at least and at most, over those until the predecessor's death."""
    ratios: list[tuple[Trace, float]] = []
    for run, alarm, evidence, _ in seen:
        if alarm and evidence == "died" and run.death and alarm.eta_step:
            left = max(1.0, alarm.eta_step - alarm.step)
            ratios.append((run, (run.death - alarm.step) / left))
    counts = Counter(run.family for run, _ in ratios)
    shares = [(ratio, 1 / counts[run.family]) for run, ratio in ratios]
    low = _exceeded([(1 / ratio, weight) for ratio, weight in shares])
    return 1 / low, _exceeded(shares)


def _excess(error: float, bound: float, scale: float) -> float:
    """Return the exponent with which a bound would just hold: without the scale it has now."""
    return log(error) / max(0.02, log(max(bound, 1.0)) / scale)


def quantile(values: Weighted) -> float:
    """Return the value that MISSED_PER_SIDE of the weight exceeds, at least 1."""
    return max(1.0, _exceeded(values))


def _exceeded(values: Weighted) -> float:
    """Return the value that MISSED_PER_SIDE of the weight exceeds."""
    ordered = sorted(values)
    most = (1 - MISSED_PER_SIDE) * sum(weight for _, weight in ordered)
    sums = accumulate(weight for _, weight in ordered)
    return next(value for (value, _), total in zip(ordered, sums, strict=True) if total >= most)


def growth(runs: Sequence[Trace]) -> list[Growth]:
    """Return the rows of runs in which memory grows, each fed without and with the finder."""
    plain, with_finder = outlooks(runs)
    return [*rows_of(plain, 0.5), *rows_of(with_finder, 0.5)]


def deaths(rows: Iterable[Growth], evidence: Evidence) -> tuple[tuple[float, float], ...]:
    """Return the calibrated shares that die: (up to this distance, share), falling."""
    rows = list(rows)
    bounds = BOUNDS.get(evidence, DISTANCES)
    of_kind = [row for row in rows if row.evidence == evidence]
    prior = _share(of_kind, _share(rows, 0.5))
    bins = [
        [row for row in of_kind if low < row.distance <= high]
        for low, high in pairwise((-inf, *bounds))
    ]
    blocks: list[tuple[float, float, float]] = []
    for bound, members in zip(bounds, bins, strict=True):
        weight = sum(row.weight for row in members) + 1e-9
        blocks.append((bound, _share(members, prior), weight))
        # pool adjacent violators: the share may not rise with the distance
        while len(blocks) > 1 and blocks[-1][1] >= blocks[-2][1]:
            (_, first, one), (last, second, other) = blocks[-2:]
            pooled = (first * one + second * other) / (one + other)
            blocks[-2:] = [(last, pooled, one + other)]
    return tuple((bound, round(share, 2)) for bound, share, _ in blocks)


def _share(rows: Iterable[Growth], prior: float) -> float:
    rows = list(rows)
    died = sum(row.weight for row in rows if row.has_died)
    weight = sum(row.weight for row in rows)
    return (died + PRIOR_PROGRAMS * prior) / (weight + PRIOR_PROGRAMS)


def reliability(rows: Iterable[Growth]) -> Iterator[tuple[float, ...]]:
    """Yield (share of the forecasts, mean told, died) by told probability, for people's levels.

    The last tuple holds the Brier score, the mean calibration error, and the share that died.
    """
    told = [row for row in rows if row.is_told]
    total = sum(row.weight for row in told)
    error = 0.0
    for low, high in pairwise(RELIABILITY):
        members = [row for row in told if low <= row.told < high]
        weight = sum(row.weight for row in members)
        if weight:
            mean = sum(row.weight * row.told for row in members) / weight
            died = sum(row.weight for row in members if row.has_died) / weight
            error += weight * abs(mean - died) / total
            yield weight / total, mean, died
    brier = sum(row.weight * (row.told - row.has_died) ** 2 for row in told) / total
    yield brier, error, sum(row.weight for row in told if row.has_died) / total


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--held-out", action="store_true", help="check the programs held out, too")
    main(with_held_out=parser.parse_args().held_out)
