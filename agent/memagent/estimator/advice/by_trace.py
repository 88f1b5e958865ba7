"""Advice for a traced step: each change is applied, and the step estimated again.

1. Changes of the program (precision, checkpointing, LoRA, fewer samples) need a new trace. Those
   that only move bytes or change their number (8-bit states, sharding, offload, a fused optimizer)
   rewrite the first trace's events; the allocator's settings need a replay.
2. Traces are cached by what they depend on, so that combinations cost little more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memagent.errors import EstimateError
from memagent.estimator import engine
from memagent.estimator.advice.catalog import (
    ChangeEvaluator,
    EvaluatedChange,
    batch_divisors,
    is_enough,
    smallest_set,
    with_fewest_parts,
)
from memagent.estimator.advice.change import MemoryChange, TraceChange, TracedStep
from memagent.estimator.advice.program_changes import SmallerBatch
from memagent.estimator.estimate import Estimate
from memagent.estimator.model_edits import EditedModel
from memagent.estimator.request import TraceRequest
from memagent.estimator.trace.events import Trace
from memagent.wire.messages import AdviceItem

_UNTRACED_FIELDS = ("allocator", "limit_bytes", "workspace_bytes", "context_bytes")
"""Fields of a request that its trace does not depend on."""
MAX_NEW_TRACES = 10
"""Changes that would need more traces are left out."""
MAX_DIVISIONS = 3
"""Divisions of the batch that are traced after the first."""
MAX_GENTLE_COST_RANK = 3
"""Changes up to this cost train the same weights on the same device."""


def advise(
    request: TraceRequest, now: Estimate, trace: Trace, *, max_new_traces: int = MAX_NEW_TRACES
) -> tuple[AdviceItem, ...]:
    """Return what would save memory, the largest saving first.

    `now` is the request's estimate, made from `trace`.
    """
    evaluator = _TraceEvaluator(request, trace, max_new_traces)
    return evaluator.advise(now, evaluator.step.script)


class _TraceEvaluator(ChangeEvaluator):
    """Estimates of a traced step with changes, and the cache of its traces."""

    def __init__(self, request: TraceRequest, trace: Trace, max_new_traces: int) -> None:
        self.step = TracedStep.of(request, trace)
        self._traces_left = max_new_traces
        self._traces: dict[str, Trace | None] = {_trace_key(TraceChange()): trace}

    def estimate(self, changes: Sequence[MemoryChange]) -> Estimate | None:
        """Return None also if the step cannot be traced with the changes."""
        combined = self._combined(changes)
        if combined is None:
            return None
        request = replace(self.step.request, **combined.fields)
        if combined.edits:
            request = replace(request, model=EditedModel(request.model, combined.edits))
        trace = self._trace(_trace_key(combined), request)
        if trace is None:
            return None
        for rewrite in combined.rewrites:
            trace = rewrite(trace)
        return engine.estimate_trace(request, trace)

    def _combined(self, changes: Sequence[MemoryChange]) -> TraceChange | None:
        """Return the changes as one, each of the request that those before it leave."""
        combined = TraceChange()
        for change in changes:
            request = replace(self.step.request, **combined.fields)
            try:
                applied = change.apply_to_trace(replace(self.step, request=request))
            except EstimateError:
                return None
            if applied is None:
                return None
            combined = combined.then(applied)
        return combined

    def _trace(self, key: str, request: TraceRequest) -> Trace | None:
        if key not in self._traces:
            if not self._traces_left:
                return None
            self._traces_left -= 1
            try:
                self._traces[key] = engine.record(request)
            except EstimateError:
                self._traces[key] = None
        return self._traces[key]

    def smaller_batches(self, now: Estimate) -> Iterator[SmallerBatch]:
        """Try the number of parts on the line through the whole batch and its first division."""
        try:
            batch = self.step.request.batch
        except EstimateError:
            return
        divisors = list(batch_divisors(batch))
        if not divisors:
            return
        first = SmallerBatch(batch, divisors[0])
        then = self.estimate((first,))
        if then is None:
            return
        if now.limit_bytes is None or is_enough(then):
            yield first
            return
        size = batch // divisors[0]
        # two estimates give the line; a trace for each number of parts would take too long
        sample_bytes = (now.needed_bytes - then.needed_bytes) / (batch - size)
        fitting = 0.0
        if sample_bytes > 0:
            fitting = size - (then.needed_bytes - now.limit_bytes) / sample_bytes
        likely = sum(batch // count > fitting for count in divisors[:-1])
        yield self._fewest_parts(batch, divisors, likely) or first

    def _fewest_parts(self, batch: int, divisors: list[int], likely: int) -> SmallerBatch | None:
        """Return the division into the fewest parts that fits, by a few tries around the likely.

        Segments are reserved in steps, so need doesn't follow a line: neighbours may fit as well.
        """
        fewest: SmallerBatch | None = None
        place = max(1, likely)  # the first division is known not to fit
        for _ in range(MAX_DIVISIONS):
            if not 0 < place < len(divisors):
                break
            division = SmallerBatch(batch, divisors[place])
            then = self.estimate((division,))
            fits = then is not None and is_enough(then)
            if fits:
                fewest = division
            elif fewest is not None:
                break
            place += -1 if fits else 1
        return fewest

    def smallest_set(self, evaluated: Sequence[EvaluatedChange]) -> tuple[MemoryChange, ...] | None:
        """Return a set that fits, of changes that train the same weights if possible.

        Each set may need a trace, so only few are tried, in the order of their savings.
        """

        def fits(chosen: tuple[MemoryChange, ...]) -> bool:
            then = self.estimate(chosen)
            return then is not None and is_enough(then)

        by_saving = sorted(evaluated, key=lambda e: e.estimate.needed_bytes)
        changes = [e.change for e in by_saving if e.change.key != SmallerBatch.key]
        batch = self.step.request.batch if len(changes) < len(evaluated) else 1
        changes += [SmallerBatch(batch, batch)] if batch > 1 else []
        on_same_gpus = [change for change in changes if not change.needs_more_gpus]
        gentle = [c for c in on_same_gpus if c.cost_rank <= MAX_GENTLE_COST_RANK]
        for candidates in (gentle, on_same_gpus, changes):
            # no tries of pairs: each could need a new trace
            chosen = smallest_set(candidates, fits, max_tries=0)
            if chosen is not None:
                return with_fewest_parts(batch, chosen, fits)
        return None


def _trace_key(change: TraceChange) -> str:
    """Return the same text for changes whose traces are the same."""
    fields: Mapping[str, Any] = {
        name: value for name, value in change.fields.items() if name not in _UNTRACED_FIELDS
    }
    return repr((sorted(fields.items(), key=lambda pair: pair[0]), change.edits))
