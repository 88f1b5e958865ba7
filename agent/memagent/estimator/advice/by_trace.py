"""Advice for a traced step: each change of the catalogue is made, and the step estimated anew.

1. Changes of the program (precision, checkpointing, LoRA, fewer samples) are traced anew. Those that only alter where bytes lie or how many
   they are (8-bit states, sharding, offload, a fused optimizer) rewrite the first trace's events; the allocator's settings need a replay.
2. A question that was traced once is not traced again, so that combinations cost little more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from memagent.errors import EstimateError
from memagent.estimator import input_specs
from memagent.estimator.advice.apply_to_trace import Step, TraceChange
from memagent.estimator.advice.by_formula import in_fewest_parts, parts_of
from memagent.estimator.advice.catalog import CHANGES, SMALLER_BATCH, Change, smaller_batch
from memagent.estimator.advice.combinations import smallest_set
from memagent.estimator.advice.model_edits import EditedModel
from memagent.estimator.advice.ranking import EvaluatedChange, is_enough, item, needs_a_set, ranked
from memagent.estimator.estimate import Estimate
from memagent.estimator.request import EstimateRequest
from memagent.estimator.trace import Trace

_UNTRACED = ("allocator", "limit_bytes", "workspace_bytes", "context_bytes")
"""Fields that a trace does not depend on."""
TRACES = 10
"""Steps that are traced anew at most; what would take more is left out."""
GENTLE = 3
"""Changes of at most this pain train the same weights, on the same device."""


def advise(
    question: EstimateRequest, trace: Trace, found: Estimate, *, traces: int = TRACES
) -> Estimate:
    """`found` with its advice: what would save most of the bytes that the limit is compared with comes first. Where the step does not fit
    and no change alone makes it fit on the GPUs there are, a set that does comes before all. At most `traces` steps are traced anew."""
    tries = _Tries(question, trace, traces)
    tried = [
        EvaluatedChange(change, then)
        for change in (*CHANGES, *_smaller_batches(tries, found))
        if (then := tries.estimate((change,))) is not None
    ]
    items = ranked(found, tried, tries.step.script)
    if needs_a_set(found, tried):
        chosen = _together(tries, tried)
        then = tries.estimate(chosen) if chosen else None
        if chosen and then is not None:
            items.insert(0, item(found, chosen, then, tries.step.script))
    return replace(found, advice=tuple(items))


class _Tries:
    """Estimates of the step with changes made; remembers what was traced."""

    def __init__(self, question: EstimateRequest, trace: Trace, traces: int) -> None:
        self.question, self.step, self._left = question, Step.of(question, trace), traces
        self._traces: dict[str, Trace | None] = {repr(_key(TraceChange())): trace}

    def estimate(self, chosen: Sequence[Change]) -> Estimate | None:
        """None where a change does not apply, or the step cannot be run that way."""
        made = TraceChange()
        for change in chosen:
            try:
                one = change.on_step(self.step)
            except EstimateError:
                return None
            if one is None:
                return None
            made = made.then(one)
        asked = self._asked(made)
        trace = self._traced(made, asked)
        if trace is None:
            return None
        for rewrite in made.rewrites:
            trace = rewrite(trace)
        return asked.estimate(trace)

    def _asked(self, made: TraceChange) -> EstimateRequest:
        changed = replace(self.question, **made.fields)
        return (
            replace(changed, model=EditedModel(changed.model, made.edits))
            if made.edits
            else changed
        )

    def _traced(self, made: TraceChange, asked: EstimateRequest) -> Trace | None:
        key = repr(_key(made))
        if key not in self._traces:
            if not self._left:
                return None
            self._left -= 1
            try:
                self._traces[key] = asked.trace()
            except EstimateError:
                self._traces[key] = None
        return self._traces[key]


def _key(made: TraceChange) -> tuple[Any, ...]:
    fields = {name: value for name, value in made.fields.items() if name not in _UNTRACED}
    return sorted(fields.items(), key=lambda pair: pair[0]), made.edits


def _smaller_batches(tries: _Tries, found: Estimate) -> Iterator[Change]:
    """The batch in as few parts as fit, by the line through the whole and the half; in two where no limit is known or nothing fits."""
    try:
        batch = input_specs.batch_of(tries.question.inputs)
    except EstimateError:
        return
    parts = parts_of(batch)
    if not parts:
        return
    first = smaller_batch(batch, parts[0])
    half = tries.estimate((first,))
    if half is None:
        return
    if found.limit_bytes is None or is_enough(half):
        yield first
        return
    size = batch // parts[0]
    each = (found.needed_bytes - half.needed_bytes) / (batch - size)
    fitting = size - (half.needed_bytes - found.limit_bytes) / each if each > 0 else 0
    likely = next((count for count in parts if batch // count <= fitting), parts[-1])
    change = smaller_batch(batch, likely)
    then = tries.estimate((change,))
    yield change if then is not None and is_enough(then) else first


def _together(tries: _Tries, tried: Sequence[EvaluatedChange]) -> tuple[Change, ...] | None:
    """Each set may be a trace, so few are tried: what saves most is taken first, at first of what changes nothing that is trained."""

    def fits(chosen: tuple[Change, ...]) -> bool:
        then = tries.estimate(chosen)
        return then is not None and is_enough(then)

    by_saving = sorted(tried, key=lambda one: one.then.needed_bytes)
    changes = [one.change for one in by_saving if one.change.key != SMALLER_BATCH]
    batch = input_specs.batch_of(tries.question.inputs) if len(changes) < len(tried) else 1
    changes += [smaller_batch(batch, batch)] if batch > 1 else []
    here = [change for change in changes if not change.more_gpus]
    gentle = [change for change in here if change.pain <= GENTLE]
    for some in (gentle, here, changes):
        found = smallest_set(some, fits, tries=0)
        if found is not None:
            return in_fewest_parts(batch, found, fits)
    return None
