"""Base of the memory-saving changes, and what they are applied to.

A change has three sides: `apply_to_spec` for the formula, `apply_to_trace` for a traced step, and
`snippet`, the code to add to a script. The functions `spec_change`, `retrace` and `rewrite` build
the first two. Savings are never written here: the run is estimated again with the change applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memagent.estimator.advice.script_profile import ScriptProfile, profile_of_trace
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.request import TraceRequest

if TYPE_CHECKING:
    from memagent.estimator.trace.events import Trace

    TraceRewrite = Callable[[Trace], Trace]

ADVISED_RANKS = 8
"""Ranks to advise sharding for if there is only one: a usual machine."""


@dataclass(frozen=True)
class TracedStep:
    """A request, its trace, and what the trace shows of the script."""

    request: TraceRequest
    trace: Trace
    script: ScriptProfile

    @classmethod
    def of(cls, request: TraceRequest, trace: Trace) -> TracedStep:
        return cls(request, trace, profile_of_trace(trace))

    @property
    def is_cuda(self) -> bool:
        return self.request.device == "cuda"

    def has(self, component: str) -> bool:
        return any(event.component == component and event.size_bytes for event in self.trace.events)

    @property
    def has_fp32_weights(self) -> bool:
        return any(
            event.component == "parameters" and event.dtype == "float32"
            for event in self.trace.events
        )


@dataclass(frozen=True)
class TraceChange:
    """Changed request `fields` and model `edits` (both need a new trace), and `rewrites`."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    edits: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    rewrites: tuple[TraceRewrite, ...] = ()

    def then(self, other: TraceChange) -> TraceChange:
        """Return both changes as one."""
        return TraceChange(
            {**self.fields, **other.fields},
            self.edits + tuple(edit for edit in other.edits if edit not in self.edits),
            self.rewrites + other.rewrites,
        )


SpecChange = Callable[[TrainingSpec], TrainingSpec | None]
StepChange = Callable[[TracedStep], TraceChange | None]


def never(subject: TrainingSpec | TracedStep) -> None:
    """Apply to nothing: for changes that a formula doesn't know, or that a trace doesn't show."""


def spec_change(applies: Callable[[TrainingSpec], bool], **fields: Any) -> SpecChange:
    """Return a change of the spec's `fields`, for specs that it applies to."""
    return lambda spec: replace(spec, **fields) if applies(spec) else None


def retrace(applies: Callable[[TracedStep], bool], **fields: Any) -> StepChange:
    """Return a change of the request's `fields`, for steps that it applies to."""
    return lambda step: TraceChange(fields) if applies(step) else None


def rewrite(applies: Callable[[TracedStep], bool], *rewrites: TraceRewrite) -> StepChange:
    """Return a change of the trace's events, for steps that it applies to."""
    return lambda step: TraceChange(rewrites=rewrites) if applies(step) else None


@dataclass(frozen=True)
class MemoryChange:
    """A change that saves memory: its name, effect and cost, and how to apply it.

    - cost_rank orders costs, 0 for none.
    - code: lines that run as they stand in a script with `model`, `optimizer`, `lr` and data. The
      data is `batch` for transformers (a dict with input_ids and labels), else `inputs`, `targets`
      and `loss_of(output, targets)`.
    - apply_to_spec and apply_to_trace return None if the change is applied already or makes no
      sense.
    - needs_more_gpus: a run on one GPU cannot apply it.
    - groups: changes that share a group make no sense together.
    """

    key: str
    name: str
    effect: str
    code: str | Callable[[ScriptProfile], str]
    cost: str = "none"
    cost_rank: int = 0
    apply_to_spec: SpecChange = never
    apply_to_trace: StepChange = never
    needs_more_gpus: bool = False
    groups: tuple[str, ...] = ()

    def snippet(self, script: ScriptProfile) -> str:
        return self.code if isinstance(self.code, str) else self.code(script)


def loss_expression(script: ScriptProfile) -> str:
    return "model(**batch).loss" if script.transformers else "loss_of(model(inputs), targets)"


def is_decoder_spec(spec: TrainingSpec) -> bool:
    """Return True for a causal language model, which some snippets are for."""
    return spec.model.head_kind == "lm" and not spec.model.decoder_layers


def is_decoder_step(step: TracedStep) -> bool:
    """Return False for an encoder, as far as the names of its blocks say."""
    return not step.script.transformers or "encoder" not in step.script.blocks
