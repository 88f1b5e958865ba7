"""Advice by formula: each change of the catalogue is made in the spec, and the run estimated anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from memagent.errors import EstimateError
from memagent.estimator.advice.catalog import CHANGES, SMALLER_BATCH, Change, smaller_batch
from memagent.estimator.advice.combinations import smallest_set
from memagent.estimator.advice.ranking import EvaluatedChange, item, needs_a_set, ranked
from memagent.estimator.advice.script_facts import script_of_spec
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_training
from memagent.estimator.search import largest_batch
from memagent.wire.messages import AdviceItem

TRIES = 4000
"""Sets of changes that are estimated at most: a fifth of a second."""


def advise(
    spec: TrainingSpec,
    limit_bytes: int | None = None,
    *,
    at_most: int = 50,
    context_bytes: int | None = None,
) -> list[AdviceItem]:
    """What would save memory in this run, the largest saving first. Where it does not fit and no change alone makes it fit on the GPUs
    there are, the smallest set that does comes before all. Arguments as for `estimate_training`."""
    now = estimate_training(spec, limit_bytes=limit_bytes, context_bytes=context_bytes)

    def estimated(changed: TrainingSpec) -> Estimate:
        return estimate_training(changed, limit_bytes=now.limit_bytes, context_bytes=context_bytes)

    tried = [
        EvaluatedChange(change, estimated(changed))
        for change in (*CHANGES, *_smaller_batches(spec, now, context_bytes))
        if (changed := applied(spec, (change,))) is not None
    ]
    script = script_of_spec(spec)
    found = ranked(now, tried, script)
    if needs_a_set(now, tried):
        chosen = _together(spec, tried, now, context_bytes)
        changed = applied(spec, chosen) if chosen else None
        if chosen and changed is not None:
            found.insert(0, item(now, chosen, estimated(changed), script))
    return found[:at_most]


def applied(spec: TrainingSpec, chosen: Sequence[Change]) -> TrainingSpec | None:
    """The spec with all of these made; None where one of them does not apply."""
    changed: TrainingSpec | None = spec
    for change in chosen:
        try:
            changed = change.on_spec(changed) if changed is not None else None
        except EstimateError:  # LoRA's usual targets may not be this family's
            return None
    return changed


def _together(
    spec: TrainingSpec, tried: Sequence[EvaluatedChange], now: Estimate, context_bytes: int | None
) -> tuple[Change, ...] | None:
    def fits(chosen: tuple[Change, ...]) -> bool:
        changed = applied(spec, chosen)
        if changed is None:
            return False
        return bool(
            estimate_training(
                changed, limit_bytes=now.limit_bytes, context_bytes=context_bytes
            ).fits
        )

    changes = [one.change for one in tried if one.change.key != SMALLER_BATCH]
    changes += [smaller_batch(spec.batch, spec.batch)] if len(changes) < len(tried) else []
    here = [change for change in changes if not change.more_gpus]
    found = smallest_set(here, fits, tries=TRIES) or smallest_set(changes, fits, tries=TRIES)
    return None if found is None else in_fewest_parts(spec.batch, found, fits)


def in_fewest_parts(
    batch: int, chosen: tuple[Change, ...], fits: Callable[[tuple[Change, ...]], bool]
) -> tuple[Change, ...]:
    """The same set, with the batch in no more parts than it takes."""
    if all(change.key != SMALLER_BATCH for change in chosen):
        return chosen
    for parts in parts_of(batch)[:-1]:
        fewer = tuple(
            smaller_batch(batch, parts) if change.key == SMALLER_BATCH else change
            for change in chosen
        )
        if fits(fewer):
            return fewer
    return chosen


def parts_of(batch: int) -> list[int]:
    """Into how many equal parts a batch can be cut, from two up."""
    return [parts for parts in range(2, batch + 1) if batch % parts == 0]


def _smaller_batches(
    spec: TrainingSpec, now: Estimate, context_bytes: int | None
) -> Iterator[Change]:
    """The batch in as few parts as fit; in two where no limit is known or nothing fits."""
    if spec.batch == 1 or spec.model.parameters is not None:
        return
    parts = parts_of(spec.batch)
    if now.limit_bytes is None:
        yield smaller_batch(spec.batch, parts[0])
        return
    accumulated = replace(spec, accumulation=max(2, spec.accumulation))
    largest = largest_batch(
        accumulated,
        now.limit_bytes,
        most=spec.batch,
        estimator=partial(estimate_training, context_bytes=context_bytes),
    )
    fewest = next((count for count in parts if spec.batch // count <= largest), parts[0])
    yield smaller_batch(spec.batch, fewest, largest=largest if largest < spec.batch else None)
