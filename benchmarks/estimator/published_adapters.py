"""Adapters that others trained by their own code: `python -m benchmarks.estimator adapters`.

`published_adapters.json` has the peaks that LitGPT and fsdp_qlora published, with the length
of each sample. None of them runs peft or transformers' Trainer, and LitGPT has models of its own.
So an answer is as good as what the command line can be told. No rule was written beside these rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.estimator import isolated
from memagent.cli.estimate import parse_step
from memagent.cli.estimate_request import build_request
from memagent.estimator.engine import estimate
from memagent.estimator.estimate import Estimate

FILE = Path(__file__).with_name("published_adapters.json")


@dataclass(frozen=True)
class Row:
    """One run: its peak in bytes at a level, None if it ran out of memory on its card."""

    source: str
    options: str
    formula_options: str
    card: str
    level: str
    peak_bytes: int | None
    has_trace: bool

    def ask(self, method: str) -> Estimate:
        """Return the answer to the command line. Raises EstimateError."""
        extra = self.formula_options if method == "formula" else ""
        words = f"{self.options} {extra} --gpu {self.card} --method {method} --timeout 300".split()
        return estimate(build_request(parse_step(words)))


@dataclass(frozen=True)
class Answer:
    """What one method says to a row."""

    row: Row
    method: str
    predicted_bytes: int
    is_held: bool
    outcome: str

    @property
    def error_ratio(self) -> float | None:
        true = self.row.peak_bytes
        return None if true is None else self.predicted_bytes / true - 1


def read(path: Path = FILE) -> Iterator[Row]:
    """Yield the published rows."""
    for table in json.loads(path.read_text()):
        for run in table["runs"]:
            peak = run["peak"]
            yield Row(
                table["source"],
                f"{run['options']} {table['options']}",
                table["formula_options"],
                table["card"],
                run.get("level", table["level"]),
                None if peak is None else round(peak * table["unit_bytes"]),
                has_trace=table["is_traced"],
            )


def answer(row: Row, method: str) -> Answer:
    """Ask one method. Raises EstimateError if it refuses."""
    said = row.ask(method)
    fields: dict[str, Any] = vars(said)
    low, high = said.intervals[row.level]
    is_held = row.peak_bytes is not None and low <= row.peak_bytes <= high
    predicted = fields[f"peak_{row.level}_bytes"]
    return Answer(row, method, predicted, is_held=is_held, outcome=said.outcome or "")


def main(only: str = "", *, trace: bool = False) -> int:
    """Print each row's errors, and their median by source and method."""
    answers: list[Answer] = []
    for row in read():
        for method in ("formula", "trace"):
            if only not in row.options or (method == "trace" and not (trace and row.has_trace)):
                continue
            outcome = isolated.call(partial(answer, row, method), timeout_s=600.0)
            if outcome.value is None:
                print(f"{row.options}: {method}: {outcome.error}", file=sys.stderr, flush=True)
                continue
            answers.append(outcome.value)
            print(_line(outcome.value), flush=True)
    print("\n".join(_summaries(answers)))
    return 0


def _line(one: Answer) -> str:
    error = one.error_ratio
    text = "ran out of memory" if error is None else f"{100 * error:+.1f} %"
    held = "" if error is None else "in the interval" if one.is_held else "outside"
    return f"| {one.row.options} | {one.method} | {text} | {held} | {one.outcome} |"


def _summaries(answers: list[Answer]) -> Iterator[str]:
    for source, method in dict.fromkeys((one.row.source, one.method) for one in answers):
        some = [one for one in answers if (one.row.source, one.method) == (source, method)]
        measured = [one for one in some if one.error_ratio is not None]
        sizes = sorted(abs(one.error_ratio or 0.0) for one in measured)
        died = [one for one in some if one.error_ratio is None]
        wrong = sum(one.outcome == "fits" for one in died)
        wrong_death = sum(one.outcome == "won't fit" for one in measured)
        yield (
            f"{source}, {method}: {len(sizes)} rows, median {100 * median(sizes):.1f} %, worst "
            f"{100 * sizes[-1]:.1f} %, {sum(one.is_held for one in measured)} in the interval; "
            f"wrong fits: {wrong} of {len(died)}, wrong won't fit: {wrong_death}"
        )
