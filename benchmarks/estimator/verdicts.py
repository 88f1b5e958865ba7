"""Verdicts on measured trainings: `python -m benchmarks.estimator verdicts`.

1. Each training is judged at limits around its measured need (`LIMITS`): it dies at those below,
   and runs at those above. The level is the highest that was measured: device, reserved, tensors.
2. The verdict is that of an `Estimate`: `fits` if the whole interval is within the limit, `won't
   fit` if none of it is, else `tight`, which is never wrong.
3. *Wrong fits* is the share of the limits that a training dies at with the verdict `fits`. *Wrong
   won't fit* is the share of the limits that it runs at with the verdict `won't fit`.
4. Trainings that intervals were fitted to (`seen`) are apart from the others. Published runs that
   ran out of memory are judged at their card's memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from benchmarks.estimator import intervals, truths
from benchmarks.estimator.corpus import Measured
from benchmarks.estimator.estimators import Prediction
from benchmarks.estimator.truths import LEVELS
from memagent.estimator.devices import context_of
from memagent.estimator.formula.training import estimate_training
from memagent.estimator.intervals import context_widths, intervals_of, ratio_table

LIMITS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0)
"""Limits as ratios of the measured need; from 1.0 on the training runs."""


@dataclass(frozen=True)
class Verdict:
    """One prediction at one limit."""

    method: str
    is_seen: bool
    dies: bool
    outcome: str


def verdicts() -> Iterator[Verdict]:
    """Yield the verdicts on all measured trainings."""
    seen, unseen = intervals.halves(intervals.read())
    for rows, is_seen in ((seen, True), (unseen, False)):
        for row in rows:
            yield from _of_training(row, is_seen=is_seen)


def _of_training(row: Measured, *, is_seen: bool) -> Iterator[Verdict]:
    level = next(level for level in reversed(LEVELS) if level in row.levels)
    for prediction in row.predictions.values():
        interval = _interval(row, prediction, level)
        if interval is None or intervals.is_tuned(row):
            continue
        for ratio in LIMITS:
            limit = ratio * row.levels[level]
            low, high = interval
            outcome = "fits" if high <= limit else "won't fit" if low > limit else "tight"
            method = prediction.group.partition(",")[0]
            yield Verdict(method, is_seen, dies=ratio < 1, outcome=outcome)


def _interval(row: Measured, prediction: Prediction, level: str) -> tuple[int, int] | None:
    """Return the interval at a level, with the measured context if there is one."""
    known = {
        name: getattr(prediction, f"{name}_bytes")
        for name in LEVELS
        if getattr(prediction, f"{name}_bytes")
    }
    if level not in known or not prediction.passing_bytes:
        return None
    widths = None
    if level == "device" and row.outside_bytes is not None:
        known["device"] += row.outside_bytes - (prediction.context_bytes or 0)
    elif level == "device":
        unknown = context_of(None)
        widths = context_widths(unknown.size_bytes, unknown.interval)
    ratios = ratio_table().ratios_for(prediction.group)
    held = intervals_of(ratios, passing_bytes=prediction.passing_bytes, context=widths, **known)
    return held[level]


def published_deaths() -> Iterator[Verdict]:
    """Yield the formula's verdicts on published runs that ran out of memory, on their card."""
    for truth in truths.published():
        if truth.died_at_bytes and truth.spec is not None:
            spec = replace(truth.spec, gpu="a100")
            outcome = estimate_training(spec, limit_bytes=truth.died_at_bytes).outcome
            yield Verdict("formula, published deaths", False, True, str(outcome))


def main() -> int:
    """Print wrong verdicts per 100, by method and half."""
    print("\n".join(lines([*verdicts(), *published_deaths()])))
    return 0


def lines(judged: Iterable[Verdict]) -> Iterator[str]:
    """Yield the table."""
    groups: dict[tuple[str, bool], list[Verdict]] = defaultdict(list)
    for verdict in judged:
        groups[verdict.method, verdict.is_seen].append(verdict)
    yield "| method | intervals fitted to them | dies: limits | wrong fits per 100 | runs: limits | wrong won't fit per 100 | tight per 100 |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for (method, is_seen), members in sorted(groups.items()):
        died = [one for one in members if one.dies]
        lived = [one for one in members if not one.dies]
        cells = (
            method,
            "yes" if is_seen else "no",
            f"{len(died)}",
            _per_hundred(died, "fits"),
            f"{len(lived)}",
            _per_hundred(lived, "won't fit"),
            _per_hundred(members, "tight"),
        )
        yield f"| {' | '.join(cells)} |"


def _per_hundred(members: list[Verdict], outcome: str) -> str:
    if not members:
        return "-"
    return f"{100 * sum(one.outcome == outcome for one in members) / len(members):.1f}"
