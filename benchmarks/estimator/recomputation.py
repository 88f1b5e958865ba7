"""Is what `memagent.fit` runs again the least? `python -m benchmarks.estimator recomputation`.

1. A model of at most 12 layers is fitted to a share of what its step needs, by recomputation alone.
2. Every set of its blocks that costs less than the choice by more than a twentieth is a challenger,
   if no block can be added to it. The challengers with the lowest predicted peaks are applied and
   traced: one that fits refutes the choice, and the search goes on below it.
3. A set whose tensors alone exceed the limit by more than MAX_EXCESS isn't traced: predictions and
   traces differ by less, which every traced set checks.

The results are kept in `recomputation.json`; `--trace` adds what is missing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path

import msgspec
import torch

from benchmarks.estimator.fit_step import build
from benchmarks.estimator.fitting import BATCHES
from memagent.estimator.advice.catalog import is_enough
from memagent.estimator.api import device_fields
from memagent.estimator.request import TraceRequest
from memagent.fitting.budget import TraceBudget
from memagent.fitting.changes import Changes
from memagent.fitting.choice import challengers
from memagent.fitting.profile import StepProfile
from memagent.fitting.search import TOLERANCE, Search

RESULTS = Path(__file__).with_name("recomputation.json")
MODELS = ("mlp", "resnet", "unet", "encoder", "bert", "t5", "bart", "gpt2", "vit", "decoder12")
SHARES = (0.9, 0.8)
MAX_EXCESS = 0.1
MAX_TRACES = 12
_LIMITLESS = 1 << 42
_BUDGET_S = 36_000.0


@dataclass(frozen=True)
class Recomputation:
    """One model at one limit: the operations that run again, as a share of the step's.

    `least` is the cheapest set found; `prediction_error` the largest relative error of a traced
    peak. None for both if recomputation alone doesn't suffice.
    """

    model: str
    share: float
    blocks: int
    chosen: float | None
    least: float | None
    challengers: int
    traced: int
    prediction_error: float

    def row(self) -> str:
        chosen = f"{self.chosen:.2%}" if self.chosen is not None else "refused"
        least = f"{self.least:.2%}" if self.least is not None else "-"
        counts = f"{self.traced} of {self.challengers} challengers traced"
        return (
            f"{self.model:<12}{self.share:>5}{self.blocks:>4} blocks  chosen {chosen:>8}  least "
            f"{least:>8}  {counts}, predicted within {self.prediction_error:.1%}"
        )


def main(only: str = "", *, trace: bool = False) -> int:
    """Print a row for each model and limit, and how many choices are within 5 % of the least."""
    for name, share in [(n, s) for n in MODELS for s in SHARES if trace and only in n]:
        if not any((row.model, row.share) == (name, share) for row in read()):
            _keep([*read(), _compared(name, share)])
            print(read()[-1].row(), flush=True)
    rows = [row for row in read() if only in row.model]
    print(*(row.row() for row in rows), sep="\n")
    chosen = [row for row in rows if row.chosen is not None]
    near = [r for r in chosen if r.least is not None and r.chosen <= TOLERANCE * r.least]  # type: ignore[operator]
    print(f"{len(near)} of {len(chosen)} within 5 % of the least; {len(rows)} asked")
    return 0


def read() -> list[Recomputation]:
    """Return the kept results."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    return [msgspec.convert(row, Recomputation) for row in kept]


def _keep(rows: list[Recomputation]) -> None:
    RESULTS.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def _request(name: str) -> TraceRequest:
    model, inputs, targets, loss = build(name, BATCHES[name], "cpu")
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4)
    fields = device_fields("cuda", limit_bytes=_LIMITLESS, context_bytes=0)
    step = {"model": model, "inputs": inputs, "targets": targets, "loss": loss}
    return TraceRequest(**step, optimizer=optimizer, timeout_s=_BUDGET_S, **fields)


def _compared(name: str, share: float) -> Recomputation:
    request = _request(name)
    before = Search(request, (), TraceBudget(_BUDGET_S)).before
    limit = round(share * before.intervals["device"][1])
    request = replace(request, limit_bytes=limit)
    search = Search(request, ("recompute",), TraceBudget(_BUDGET_S))
    fitting = search.cheapest()
    chosen = fitting[0].recompute_share if fitting and is_enough(fitting[1]) else None
    blocks = max(len(profile.blocks) for profile in search.profiles)
    rows = [_least(search, profile, limit, chosen or inf) for profile in search.profiles]
    least = min(row[0] for row in rows)
    return Recomputation(
        model=name,
        share=share,
        blocks=blocks,
        chosen=chosen,
        least=None if least == inf else least,
        challengers=sum(row[1] for row in rows),
        traced=sum(row[2] for row in rows),
        prediction_error=max(row[3] for row in rows),
    )


def _least(
    search: Search, profile: StepProfile, limit: int, least: float
) -> tuple[float, int, int, float]:
    """Return the least share, how many challengers there are and were traced, and their error."""
    plain = search.before.peak_allocated_bytes - profile.peak_bytes(())
    count = len(challengers(profile, _LIMITLESS, least / TOLERANCE))
    hopeful = challengers(profile, round((1 + MAX_EXCESS) * limit), least / TOLERANCE)
    traced, error = 0, 0.0
    for choice in hopeful[:MAX_TRACES]:
        if profile.share(choice) >= least:
            continue
        blocks = tuple(profile.blocks[index].block for index in sorted(choice))
        changes = Changes(blocks=blocks, recompute_share=profile.share(choice))
        estimate = search.estimate(changes)
        traced += 1
        peak = estimate.peak_allocated_bytes
        error = max(error, abs(profile.peak_bytes(choice) + plain - peak) / peak)
        if is_enough(estimate):
            least = profile.share(choice)
    return least, count, traced, error
