"""Advice: changes that would save memory in a run, each with its saving, its cost and its code.

A change is an entry of `program_changes` or `state_changes`. `by_formula` and `by_trace` apply each
and estimate the run again; `by_cause` explains a forecast's cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent.estimator.estimate import Estimate
from memagent.estimator.request import EstimateRequest, FormulaRequest
from memagent.wire.messages import AdviceItem

if TYPE_CHECKING:
    from memagent.estimator.trace.events import Trace


def advise(
    request: EstimateRequest, estimate: Estimate, trace: Trace | None = None
) -> tuple[AdviceItem, ...]:
    """Return the changes that would save memory, the largest saving first.

    If the run does not fit and no change alone makes it fit, the smallest set that does comes
    first. A `TraceRequest` needs its trace: there is no advice for a step that could not be traced.
    """
    if isinstance(request, FormulaRequest):
        from memagent.estimator.advice import by_formula

        return by_formula.advise(request, estimate)
    if trace is None:
        return ()
    from memagent.estimator.advice import by_trace

    return by_trace.advise(request, estimate, trace)
