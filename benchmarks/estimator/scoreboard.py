"""memagent beside other estimators, on measurements of strangers: `python -m benchmarks.estimator
scoreboard`.

The truth is `truth/public_a100_80gb_sft.json`: peaks of torch's allocator that others measured and
published. Three measures are xMem's (Shi et al. 2025, arXiv 2510.21048), as its authors' evaluation
computes them. A run's peak of tensors is its need:

1. *MRE*: the median of the relative errors' sizes.
2. *Failures* (probability of estimation failure): the share of runs whose estimate isn't accurate.
   It is accurate if it says rightly whether the run dies on its card, and a run that doesn't die
   there gets along with what was predicted.
3. *Conserved* (memory conservation potential): the mean of what an accurate estimate leaves of the
   card: all but the prediction, or all of it if the run would die. Another estimate conserves 0.

Ours are also judged by the upper end of their interval, which is what a run should be given.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.estimator import score, truths
from benchmarks.estimator.estimators import ESTIMATORS, warm_up
from benchmarks.estimator.score import Result
from benchmarks.estimator.table import percent

DOCS = Path(__file__).parents[2] / "docs/estimator-accuracy.md"
_BEGIN, _END = "<!-- scoreboard -->\n", "<!-- end of scoreboard -->\n"
_UPPER_END = "{}, upper end"
_GIB = 2**30
LEFT_OUT = {
    "xMem": "no package",
    "DNNMem, SchedTune, LLMem": "no code was published, or only for other models",
}
"""Estimators that can't be installed, and why."""


@dataclass(frozen=True)
class Standing:
    """One estimator's measures; None if it predicted nothing. `runs` had a prediction."""

    estimator: str
    runs: int
    without: int
    median_error_ratio: float | None = None
    failure_ratio: float | None = None
    conserved_bytes: float | None = None

    def row(self) -> str:
        conserved = self.conserved_bytes
        cells = (
            self.estimator,
            f"{self.runs}",
            percent(self.median_error_ratio),
            percent(self.failure_ratio),
            "-" if conserved is None else f"{conserved / _GIB:+.1f} GiB",
        )
        return f"| {' | '.join(cells)} |"


def main(out: Path | None = None, *, write: bool = False) -> int:
    """Predict all published runs by all estimators, and print the table."""
    rows = list(truths.published())
    warm_up([truth.case for truth in rows if not truth.is_formula_only])
    results = [result for result in score.estimates(rows, _say) if result.level == "allocated"]
    card_bytes = {truth.case.name: truth.device_bytes or 0 for truth in rows}
    table = printed(standings(results, card_bytes))
    print(table)
    if out is not None:
        content = [asdict(one) for one in standings(results, card_bytes)]
        out.write_text(json.dumps(content, indent=1) + "\n")
    if write:
        before, _, rest = DOCS.read_text().partition(_BEGIN)
        DOCS.write_text(f"{before}{_BEGIN}{table}\n{_END}{rest.partition(_END)[2]}")
    return 0


def standings(results: Sequence[Result], card_bytes: dict[str, int]) -> list[Standing]:
    """Return the measures of each estimator."""
    judged = []
    for name in ESTIMATORS:
        own = [result for result in results if result.estimator == name]
        judged.append(standing(own, card_bytes, name))
        if any(result.high_bytes is not None for result in own):
            upper = [replace(result, predicted_bytes=result.high_bytes) for result in own]
            judged.append(standing(upper, card_bytes, _UPPER_END.format(name)))
    return judged


def standing(results: Sequence[Result], card_bytes: dict[str, int], name: str) -> Standing:
    """Judge the predictions of one estimator."""
    predicted = [result for result in results if result.predicted_bytes is not None]
    errors = [abs(r.error_ratio) for r in predicted if r.error_ratio is not None]
    accurate = [_is_accurate(result, card_bytes[result.case]) for result in predicted]
    conserved = [
        _left_bytes(result, card_bytes[result.case]) if is_accurate else 0
        for result, is_accurate in zip(predicted, accurate, strict=True)
    ]
    return Standing(
        name,
        len(predicted),
        len(results) - len(predicted),
        statistics.median(errors) if errors else None,
        1 - statistics.mean(accurate) if accurate else None,
        statistics.mean(conserved) if conserved else None,
    )


def _is_accurate(result: Result, card_bytes: int) -> bool:
    predicted = result.predicted_bytes or 0
    if result.true_bytes is None:
        return predicted > (result.died_at_bytes or 0)
    return result.true_bytes <= predicted <= card_bytes


def _left_bytes(result: Result, card_bytes: int) -> int:
    return card_bytes if result.true_bytes is None else card_bytes - (result.predicted_bytes or 0)


def printed(rows: Sequence[Standing]) -> str:
    """Format a Markdown table, and what is missing in it."""
    return "\n".join(_lines(rows))


def _lines(rows: Sequence[Standing]) -> Iterator[str]:
    yield "| | runs | MRE | failures | conserved |"
    yield "| --- | --- | --- | --- | --- |"
    for one in rows:
        yield one.row()
    yield ""
    yield f"Not installable: {'; '.join(f'{name} ({why})' for name, why in LEFT_OUT.items())}."


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
