"""Errors of every estimator against every truth, as values; `table.py` prints them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

from benchmarks.estimator import isolated
from benchmarks.estimator.estimators import ESTIMATORS, LeftOutError, Prediction, ours_by_formula
from benchmarks.estimator.truths import LEVELS, Truth
from benchmarks.estimator.workload import Case

LIMITS = (0.5, 0.8, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.25, 2.0)
"""Device sizes for the verdicts, as multiples of the needed size: five too small and five large
enough.
"""
CARDS = tuple(size * 2**30 for size in (8, 12, 16, 24, 32, 40, 48, 80))
"""Memory sizes of common cards, for cases measured in GiB."""

_LEFT_OUT = f"{LeftOutError.__name__}: "
_BUDGET_S = 180
"""Processor time of an estimator for a case: a busy machine takes none of it."""
_TIMEOUT_S = 3600.0


class Verdict(NamedTuple):
    """Verdict at one limit: out of memory or not, as predicted or not, and whether the interval
    holds the limit.
    """

    dies: bool
    predicts_oom: bool
    in_doubt: bool


@dataclass(frozen=True)
class Result:
    """One estimate and its truth. `predicted_bytes` is None without a prediction, and `note` says
    why.
    """

    source: str
    level: str
    case: str
    estimator: str
    true_bytes: int | None
    predicted_bytes: int | None = None
    low_bytes: int | None = None
    high_bytes: int | None = None
    died_at_bytes: int | None = None
    seconds: float | None = None
    left_out: bool = False
    note: str = ""

    @property
    def error_ratio(self) -> float | None:
        """Return predicted over true, minus one."""
        if self.predicted_bytes is None or not self.true_bytes:
            return None
        return self.predicted_bytes / self.true_bytes - 1

    def verdicts(self) -> Iterator[Verdict]:
        """Return the verdict at each limit. A prediction equal to the limit fits; one whose
        interval holds the limit is in doubt.
        """
        if self.predicted_bytes is None:
            return
        if self.died_at_bytes is not None:
            yield self._verdict(True, self.died_at_bytes)
        if not self.true_bytes:
            return
        cards = CARDS if self.true_bytes > 2**30 else ()
        for limit in (*(share * self.true_bytes for share in LIMITS), *cards):
            yield self._verdict(self.true_bytes > limit, limit)

    def _verdict(self, dies: bool, limit: float) -> Verdict:
        low, high = self.low_bytes, self.high_bytes
        in_doubt = low is not None and high is not None and low <= limit < high
        return Verdict(dies, (self.predicted_bytes or 0) > limit, in_doubt)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "error_ratio": self.error_ratio}


@dataclass(frozen=True)
class Summary:
    """One estimator at one level of one source. Ratios are None if nothing was judged;
    `worst_ratio` has a sign.
    """

    source: str
    level: str
    estimator: str
    cases: int
    failed: int
    left_out: int
    median_ratio: float | None = None
    p90_ratio: float | None = None
    worst_ratio: float | None = None
    worst_case: str = ""
    exact_ratio: float | None = None
    recall_ratio: float | None = None
    false_alarm_ratio: float | None = None
    doubt_ratio: float | None = None
    sure_recall_ratio: float | None = None
    sure_false_alarm_ratio: float | None = None
    covered_ratio: float | None = None
    median_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def estimates(
    truths: Iterable[Truth], say: Callable[[str], None] = lambda _: None
) -> Iterator[Result]:
    """Run every estimator on every truth, each in a separate process."""
    for truth in truths:
        if not truth.levels and truth.died_at_bytes is None:
            continue
        for name, estimate in ESTIMATORS.items():
            say(f"{truth.case.name}: {name}")
            yield from _compared(truth, name, estimate)


def _compared(
    truth: Truth, name: str, estimate: Callable[[Case, str], Prediction]
) -> Iterator[Result]:
    outcome = isolated.call(
        partial(_predict, truth, estimate), timeout_s=_TIMEOUT_S, budget_s=_BUDGET_S
    )
    for level in truth.levels or ("allocated",):
        shared = {
            "source": truth.source,
            "level": level,
            "case": truth.case.name,
            "estimator": name,
            "true_bytes": truth.levels.get(level),
            "died_at_bytes": truth.died_at_bytes,
        }
        if outcome.value is None:
            left_out = outcome.error.startswith(_LEFT_OUT)
            yield Result(**shared, left_out=left_out, note=outcome.error.removeprefix(_LEFT_OUT))
            continue
        predicted_bytes = _at(level, outcome.value, truth)
        if predicted_bytes is None:
            yield Result(**shared, left_out=True, note=f"says nothing of {level}")
            continue
        bounds = outcome.value.intervals.get(level, (None, None))
        yield Result(
            **shared,
            predicted_bytes=predicted_bytes,
            low_bytes=bounds[0],
            high_bytes=bounds[1],
            seconds=outcome.seconds,
        )


def _predict(truth: Truth, estimate: Callable[..., Prediction]) -> Prediction:
    if truth.spec is not None and estimate is ours_by_formula:
        return ours_by_formula(truth.case, truth.where, truth.spec)
    if truth.is_formula_only:
        raise LeftOutError("the model cannot be rebuilt without the libraries it ran on")
    return estimate(truth.case, truth.where)


def _at(level: str, prediction: Prediction, truth: Truth) -> int | None:
    """Return the prediction at this level. The device holds what the allocator holds, and the
    context, which agents measure.
    """
    if (
        level == "device"
        and prediction.device_bytes is None
        and prediction.reserved_bytes
        and truth.context_bytes
    ):
        return prediction.reserved_bytes + truth.context_bytes
    size_bytes: int | None = getattr(prediction, f"{level}_bytes")
    return size_bytes


def summaries(results: Sequence[Result]) -> list[Summary]:
    """Return summaries in the order of sources, levels and estimators."""
    sources = list(dict.fromkeys(result.source for result in results))
    keys = [(source, level, name) for source in sources for level in LEVELS for name in ESTIMATORS]
    groups = (
        (key, [r for r in results if (r.source, r.level, r.estimator) == key]) for key in keys
    )
    return [_summary(*key, group) for key, group in groups if group]


def _summary(source: str, level: str, estimator: str, results: list[Result]) -> Summary:
    failed = sum(result.predicted_bytes is None and not result.left_out for result in results)
    left_out = sum(result.left_out for result in results)
    judged = [(result.error_ratio, result) for result in results if result.error_ratio is not None]
    counts = (source, level, estimator, len(results), failed, left_out)
    ratios = _verdicts(results)
    if not judged:
        return Summary(*counts, **ratios)
    sizes = sorted(abs(error) for error, _ in judged)
    worst, where = max(judged, key=lambda pair: abs(pair[0]))
    times = [result.seconds for _, result in judged if result.seconds is not None]
    return Summary(
        *counts,
        median_ratio=statistics.median(sizes),
        p90_ratio=quantile(sizes, 0.9),
        worst_ratio=worst,
        worst_case=where.case,
        exact_ratio=sum(error == 0 for error, _ in judged) / len(judged),
        **ratios,
        covered_ratio=covered(results),
        median_s=statistics.median(times) if times else None,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    rank = -(-len(ordered) * round(1000 * share) // 1000)
    return ordered[max(0, rank - 1)]


def _verdicts(results: Sequence[Result]) -> dict[str, Any]:
    """Return the summary's fields about fitting; the sure ones exclude limits inside an interval."""
    verdicts = [verdict for result in results for verdict in result.verdicts()]
    recall, false_alarms = verdict_ratios(verdicts)
    if not any(result.low_bytes is not None for result in results):
        return {"recall_ratio": recall, "false_alarm_ratio": false_alarms}
    sure_recall, sure_false_alarms = verdict_ratios(
        verdict for verdict in verdicts if not verdict.in_doubt
    )
    return {
        "recall_ratio": recall,
        "false_alarm_ratio": false_alarms,
        "doubt_ratio": sum(verdict.in_doubt for verdict in verdicts) / len(verdicts)
        if verdicts
        else None,
        "sure_recall_ratio": sure_recall,
        "sure_false_alarm_ratio": sure_false_alarms,
    }


def verdict_ratios(verdicts: Iterable[Verdict]) -> tuple[float | None, float | None]:
    """Return recall (of what doesn't fit) and false alarms (of what fits)."""
    all_verdicts = list(verdicts)
    dies = [verdict.predicts_oom for verdict in all_verdicts if verdict.dies]
    fits = [verdict.predicts_oom for verdict in all_verdicts if not verdict.dies]
    return (sum(dies) / len(dies) if dies else None), (sum(fits) / len(fits) if fits else None)


def covered(results: Iterable[Result]) -> float | None:
    """Return how often an interval holds the truth."""
    inside = [
        result.low_bytes <= result.true_bytes <= result.high_bytes
        for result in results
        if result.low_bytes is not None and result.high_bytes is not None and result.true_bytes
    ]
    return sum(inside) / len(inside) if inside else None
