"""Advice by formula: each change is applied to the spec, and the run estimated again. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from memagent.errors import EstimateError
from memagent.estimator.advice.catalog import (
    ChangeEvaluator,
    EvaluatedChange,
    batch_divisors,
    smallest_set,
    with_fewest_parts,
)
from memagent.estimator.advice.change import MemoryChange
from memagent.estimator.advice.program_changes import SmallerBatch
from memagent.estimator.advice.script_profile import profile_of_spec
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_formula
from memagent.estimator.request import FormulaRequest
from memagent.estimator.search import largest_batch
from memagent.wire.messages import AdviceItem

MAX_ESTIMATED_SETS = 4000
"""Sets of changes to estimate: a fifth of a second."""


def advise(request: FormulaRequest, now: Estimate) -> tuple[AdviceItem, ...]:
    """Return what would save memory, the largest saving first; `now` is the request's estimate."""
    return _FormulaEvaluator(request, now).advise(now, profile_of_spec(request.spec))


def apply_changes(spec: TrainingSpec, changes: Sequence[MemoryChange]) -> TrainingSpec | None:
    """Return the spec with all changes, or None if one of them does not apply."""
    changed: TrainingSpec | None = spec
    for change in changes:
        try:
            changed = None if changed is None else change.apply_to_spec(changed)
        except EstimateError:  # LoRA's usual targets may not exist in this family
            return None
    return changed


class _FormulaEvaluator(ChangeEvaluator):
    """Estimates of a request with changes, against the limit of the request's own estimate."""

    def __init__(self, request: FormulaRequest, now: Estimate) -> None:
        self._request = replace(request, limit_bytes=now.limit_bytes)

    def estimate(self, changes: Sequence[MemoryChange]) -> Estimate | None:
        spec = apply_changes(self._request.spec, changes)
        return None if spec is None else estimate_formula(replace(self._request, spec=spec))

    def smallest_set(self, evaluated: Sequence[EvaluatedChange]) -> tuple[MemoryChange, ...] | None:

        def fits(chosen: tuple[MemoryChange, ...]) -> bool:
            then = self.estimate(chosen)
            return then is not None and bool(then.fits)

        batch = self._request.batch
        usable = [e.change for e in evaluated if e.change.key != SmallerBatch.key]
        if len(usable) < len(evaluated):
            usable.append(SmallerBatch(batch, batch))
        on_same_gpus = [change for change in usable if not change.needs_more_gpus]
        for candidates in (on_same_gpus, usable):
            chosen = smallest_set(candidates, fits, max_tries=MAX_ESTIMATED_SETS)
            if chosen is not None:
                return with_fewest_parts(batch, chosen, fits)
        return None

    def smaller_batches(self, now: Estimate) -> Iterator[SmallerBatch]:
        spec = self._request.spec
        batch = spec.batch
        if batch == 1:
            return
        divisors = list(batch_divisors(batch))
        if now.limit_bytes is None:
            yield SmallerBatch(batch, divisors[0])
            return
        # a batch in parts accumulates, and then gradients live through every forward
        accumulated = replace(spec, accumulation=max(2, spec.accumulation))
        request = replace(self._request, spec=accumulated)
        largest = largest_batch(request, estimate_formula, max_batch=batch).batch
        parts = next((count for count in divisors if batch // count <= largest), divisors[0])
        yield SmallerBatch(batch, parts, largest=largest if largest < batch else None)
