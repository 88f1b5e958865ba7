"""Intervals by split-conformal calibration: `python -m benchmarks.estimator intervals [--write]`.

1. Programs (models) are sorted by a hash of their name and divided by turns: all trainings of one
   are on one side, in every group.
2. The score of a training is the measured peak less the predicted one, over the passing bytes. On
   the device's level the context is left out on both sides: its range comes from other data.
3. A group's ratios are the quantiles of 5 and 95 % of the N trainings of the calibration half, at
   (N + 1) / N of the share. Every program has the same weight.
4. A group with fewer than `MIN_PROGRAMS` programs takes the ratios of the next larger pool: the
   method with or without checkpointing, then the method.
5. The formula was corrected with these trainings at hand, so errors elsewhere are larger. Above,
   its tensors' ratios are at least `MIN_ABOVE`, from models that it answered before any correction
   beside them.
6. Coverage is that of the other half, by group, level and source.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

import memagent.estimator.intervals
from benchmarks.estimator import configurations, corpus, sharded
from benchmarks.estimator.corpus import Measured
from benchmarks.estimator.truths import LEVELS
from memagent.estimator.devices import context_of
from memagent.estimator.intervals import (
    GroupRatios,
    Interval,
    RatioTable,
    context_widths,
    intervals_of,
)

TABLE = Path(memagent.estimator.intervals.__file__).with_name("interval_ratios.json")
ADDED = ("mt5",)
"""Programs that came later: divided among themselves, so that the others stay on their sides."""
MIN_PROGRAMS = 4
MIN_ABOVE = 0.0304
"""The ratio that 44 of the 45 models of `unseen.CASES` and `unseen.SECOND` don't exceed by
the formula's first answer: their conformal quantile of 95 %. `unseen.THIRD` tests it."""
_TAIL = 0.05
_TUNED = ", tuned"
"""Trainings with cudnn.benchmark, which takes what is free: no interval holds that."""


@dataclass(frozen=True)
class Score:
    """One prediction at one level beside its measured peak."""

    group: str
    level: str
    source: str
    program: str
    case: str
    ratio: float
    is_held: bool = False


def read() -> list[Measured]:
    """Return the trainings of both files."""
    return [*corpus.read(), *configurations.read(), *sharded.read()]


def corpus_hash() -> str:
    files = (corpus.FILE, configurations.FILE, sharded.RESULTS)
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def is_calibrated_on(program: str, programs: Iterable[str]) -> bool:
    """Return True if a program is in the calibration half."""
    names = [name for name in set(programs) if (name in ADDED) == (program in ADDED)]
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    return ordered.index(program) % 2 == 0


def halves(rows: Sequence[Measured]) -> tuple[list[Measured], list[Measured]]:
    """Divide the trainings by program: those to calibrate on, and those to test on.

    Those of FSDP are divided as their families are in `sharded`.
    """
    programs = {row.program for row in rows if row.source != sharded.SOURCE}
    sides: tuple[list[Measured], list[Measured]] = ([], [])
    for row in rows:
        if row.source == sharded.SOURCE:
            is_seen = row.program in sharded.SEEN
        else:
            is_seen = is_calibrated_on(row.program, programs)
        sides[0 if is_seen else 1].append(row)
    return sides


def scores(rows: Iterable[Measured], table: RatioTable | None = None) -> Iterator[Score]:
    """Yield the scores of all predictions; `table` says which of its intervals hold."""
    for row in rows:
        if is_tuned(row):
            continue
        for prediction in row.predictions.values():
            passing = prediction.passing_bytes
            if not passing:
                continue
            known = {
                level: getattr(prediction, f"{level}_bytes")
                for level in LEVELS
                if getattr(prediction, f"{level}_bytes")
            }
            context, measured = prediction.context_bytes or 0, dict(row.levels)
            widths = None
            if "device" in measured and row.outside_bytes is not None:
                measured["device"] += context - row.outside_bytes
            elif "device" in measured:
                unknown = context_of(None)
                widths = context_widths(unknown.size_bytes, unknown.interval)
            held = _intervals(table, prediction.group, passing, known, widths)
            for level in LEVELS:
                if level in measured and level in known:
                    low, high = held.get(level, (0, -1))
                    error = measured[level] - known[level]
                    yield Score(
                        prediction.group, level, row.source, row.program, row.case,
                        error / passing, low <= measured[level] <= high,
                    )  # fmt: skip


def is_tuned(row: Measured) -> bool:
    """Return True for a training with cudnn.benchmark."""
    return _TUNED in row.case


def _intervals(
    table: RatioTable | None,
    group: str,
    passing: int,
    known: Mapping[str, int],
    context: Interval | None,
) -> dict[str, Interval]:
    if table is None:
        return {}
    ratios = table.ratios_for(group)
    return intervals_of(ratios, passing_bytes=passing, context=context, **known)


def calibrate(rows: Sequence[Measured], digest: str = "") -> RatioTable:
    """Fit the ratios of every group to these trainings."""
    by_pool: dict[str, list[Score]] = defaultdict(list)
    for score in scores(rows):
        for pool in pools(score.group):
            by_pool[pool].append(score)
    groups = {group: _ratios(group, by_pool) for group in sorted(by_pool)}
    return RatioTable(digest, groups)


def pools(group: str) -> list[str]:
    """Return the group and the larger ones that it belongs to."""
    words = group.split(", ")
    if "sharded" in words:  # their errors are of gathered units, not of activations
        return [group, ", ".join(words[:2])]
    wider = [f"{words[0]}, {words[-1]}"] if len(words) > 2 else []
    return list(dict.fromkeys([group, *wider, words[0]]))


def _ratios(group: str, by_pool: Mapping[str, list[Score]]) -> GroupRatios:
    for pool in pools(group):
        members = by_pool[pool]
        programs = {score.program for score in members}
        if len(programs) >= MIN_PROGRAMS or pool == pools(group)[-1]:
            break
    levels = {}
    for level in LEVELS:
        at_level = [score for score in members if score.level == level]
        method = group.partition(",")[0]  # FSDP's rehearsals have no other level than tensors
        source = at_level or [s for s in by_pool[method] if s.level == level]
        levels[level] = quantiles(source)
    below, above = levels["allocated"]
    min_above = MIN_ABOVE if group.startswith("formula") else 0.0
    levels["allocated"] = below, max(above, min_above)
    # the device holds what is reserved
    both = zip(levels["reserved"], levels["device"], strict=True)
    levels["device"] = tuple(map(max, both))
    trainings = len({(score.source, score.case) for score in members})
    return GroupRatios(**levels, pool=pool, trainings=trainings, programs=len(programs))


def quantiles(members: Sequence[Score]) -> tuple[float, float]:
    """Return the ratios below and above, each program having the same weight."""
    if not members:
        return 0.0, 0.0
    count: dict[str, int] = defaultdict(int)
    for score in members:
        count[score.program] += 1
    share = min(1.0, (1 - _TAIL) * (len(members) + 1) / len(members))
    weighted = [(score.ratio, 1 / count[score.program] / len(count)) for score in members]
    above = _weighted(sorted(weighted), share)
    below = -_weighted(sorted(weighted, reverse=True), share)
    return round(max(0.0, below), 4), round(max(0.0, above), 4)


def _weighted(ordered: Sequence[tuple[float, float]], share: float) -> float:
    """Return the first value at which the weights reach the share."""
    total = 0.0
    for value, weight in ordered:
        total += weight
        if total >= share - 1e-9:
            return value
    return ordered[-1][0]


def main(*, write: bool = False) -> int:
    """Calibrate on one half and print the coverage of the other; `write` the package's table."""
    rows = read()
    seen, unseen = halves(rows)
    table = calibrate(seen, corpus_hash())
    if write:
        TABLE.write_text(
            msgspec.json.format(json.dumps(msgspec.to_builtins(table)), indent=1) + "\n"
        )
    print("\n".join(coverage_lines(list(scores(unseen, table)), table)))
    return 0


def coverage_lines(judged: Sequence[Score], table: RatioTable) -> Iterator[str]:
    """Yield the coverage by group and level, and the ratios that it comes from."""
    yield "| group | fitted to | allocated | reserved | device |"
    yield "| --- | --- | --- | --- | --- |"
    by_method = {group.partition(",")[0] for group in table.groups}
    for group, ratios in table.groups.items():
        members = [
            s
            for s in judged
            if s.group == group or (group in by_method and group in pools(s.group))
        ]
        if not members:
            continue
        cells = []
        for level, (below, above) in zip(
            LEVELS, (ratios.allocated, ratios.reserved, ratios.device), strict=True
        ):
            held = [score.is_held for score in members if score.level == level]
            cells.append(f"{sum(held)} of {len(held)} (-{below:.3f}, +{above:.3f})" if held else "")
        fitted = f"{ratios.trainings} of {ratios.programs} programs"
        yield f"| {group}{' (all)' if group in by_method else ''} | {fitted} | {' | '.join(cells)} |"
