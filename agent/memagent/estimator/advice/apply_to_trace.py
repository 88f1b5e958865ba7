"""Each change as a traced step has it: what to ask anew, how to edit the model, how to rewrite the events; None where it is made
already, or makes no sense for this step. Questions and traces are only looked at; no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from memagent.estimator import input_specs
from memagent.estimator.advice import trace_rewrites
from memagent.estimator.advice.apply_to_spec import LORA_RANK, RANKS
from memagent.estimator.advice.script_facts import Script, script_of_trace
from memagent.estimator.advice.trace_rewrites import Rewrite

_ADAMS = ("Adam", "AdamW", "NAdam", "RAdam")
_EXPANDABLE = "expandable_segments:True"
STEADY = 2
"""Forwards with gradients there from the one before: from the second on all are alike, so no more are traced."""
_EDIT = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Step:
    """A question, its trace, and what the trace shows of the script."""

    question: Any
    trace: Any
    script: Script

    @classmethod
    def of(cls, question: Any, trace: Any) -> Step:
        return cls(question, trace, script_of_trace(trace))

    @property
    def is_cuda(self) -> bool:
        return bool(self.question.device == "cuda")

    def has(self, component: str) -> bool:
        return any(event.component == component and event.size_bytes for event in self.trace.events)


@dataclass(frozen=True)
class TraceChange:
    """`fields` of the question to change, `edits` of its model (both are traced anew), and `rewrites` of the trace."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    edits: tuple[_EDIT, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()

    def then(self, other: TraceChange) -> TraceChange:
        """Both."""
        return TraceChange(
            {**self.fields, **other.fields},
            self.edits + tuple(edit for edit in other.edits if edit not in self.edits),
            self.rewrites + other.rewrites,
        )


def _rewritten(*made: Rewrite) -> TraceChange:
    return TraceChange(rewrites=made)


def zero_grad(step: Step) -> TraceChange | None:
    if step.question.set_to_none or step.question.accumulate > 1:
        return None
    return TraceChange({"set_to_none": True})


def attention(step: Step) -> TraceChange | None:
    return (
        _rewritten(trace_rewrites.without_scores)
        if trace_rewrites.holds_scores(step.trace)
        else None
    )


def optimizer_step(step: Step) -> TraceChange | None:
    if not any(event.op.startswith("aten::_foreach") for event in step.trace.events):
        return None
    fused = step.script.has_fused_step
    return _rewritten(
        trace_rewrites.without_temporaries if fused else trace_rewrites.one_parameter_at_a_time
    )


def autocast(step: Step) -> TraceChange | None:
    if step.question.autocast is not None or not step.is_cuda or not _has_fp32_weights(step):
        return None
    return TraceChange({"autocast": "bf16"})


def in_bf16(step: Step) -> TraceChange | None:
    if (
        not step.is_cuda
        or not _has_fp32_weights(step)
        or not _can_be_remade(step.question.optimizer)
    ):
        return None
    return _in_half(step)


def _in_half(step: Step) -> TraceChange:
    question = step.question
    fields = {
        "autocast": None,
        "inputs": input_specs.in_bf16(question.inputs),
        "targets": input_specs.in_bf16(question.targets),
        "optimizer": _remade(question.optimizer),
    }
    return TraceChange(fields, (("in_bf16", {}),))


def chunked_loss(step: Step) -> TraceChange | None:
    return (
        _rewritten(trace_rewrites.in_chunks)
        if trace_rewrites.logits_shape(step.trace) and _is_decoder(step)
        else None
    )


def _is_decoder(step: Step) -> bool:
    """Not an encoder, for which the lines of code are not: as far as the names of the blocks tell."""
    return not step.script.transformers or "encoder" not in step.script.blocks


def eight_bit(step: Step) -> TraceChange | None:
    if step.trace.optimizer not in _ADAMS or not step.has("optimizer_state") or not step.is_cuda:
        return None
    return _rewritten(trace_rewrites.eight_bit_states)


def paged(step: Step) -> TraceChange | None:
    """As it is when memory is short: the states are on the host."""
    if step.trace.optimizer not in (*_ADAMS, "Adam8bit", "AdamW8bit") or not step.is_cuda:
        return None
    return _rewritten(trace_rewrites.without_states)


def adafactor(step: Step) -> TraceChange | None:
    if step.trace.optimizer not in _ADAMS or not step.has("optimizer_state"):
        return None
    return TraceChange({"optimizer": "adafactor"})


def checkpointing(step: Step) -> TraceChange | None:
    if step.question.checkpointing is not None or not step.script.blocks or _recomputes(step):
        return None
    return TraceChange({"checkpointing": "full"})


def _recomputes(step: Step) -> bool:
    """Whether blocks run again in backward already: what they allocate there has a line of the model's own source."""
    inside = f"{step.script.blocks}."
    born = (
        event
        for event in step.trace.events
        if event.phase == "backward" and event.kind == "alloc" and event.source
    )
    return any(f"model.{event.module}.".startswith(inside) for event in born)


def lora(step: Step) -> TraceChange | None:
    if not step.is_cuda or not step.script.targets or not step.script.blocks or _is_adapted(step):
        return None
    if not _can_be_remade(step.question.optimizer):
        return None
    adapters = ("with_lora", {"targets": step.script.targets, "rank": LORA_RANK})
    return _in_half(step).then(TraceChange(edits=(adapters,)))


def qlora(step: Step) -> TraceChange | None:
    if (
        not step.script.transformers
        or trace_rewrites.logits_shape(step.trace) is None
        or not _is_decoder(step)
    ):
        return None
    adapted = lora(step)
    return None if adapted is None else adapted.then(_rewritten(trace_rewrites.in_nf4))


def _is_adapted(step: Step) -> bool:
    return any("lora_" in event.module or "adapter_" in event.module for event in step.trace.events)


def zero_1(step: Step) -> TraceChange | None:
    return _sharded(step, 1) if step.has("optimizer_state") else None


def zero_2(step: Step) -> TraceChange | None:
    return _sharded(step, 2)


def zero_3(step: Step) -> TraceChange | None:
    return _sharded(step, 3)


def _sharded(step: Step, stage: int) -> TraceChange | None:
    return (
        _rewritten(partial(trace_rewrites.sharded, stage=stage, ranks=RANKS))
        if step.is_cuda
        else None
    )


def offload_optimizer(step: Step) -> TraceChange | None:
    return (
        _rewritten(trace_rewrites.without_states)
        if step.is_cuda and step.has("optimizer_state")
        else None
    )


def offload_parameters(step: Step) -> TraceChange | None:
    return _rewritten(trace_rewrites.on_the_host) if step.is_cuda and step.script.blocks else None


def expandable_segments(step: Step) -> TraceChange | None:
    settings = step.question.allocator
    if not step.is_cuda or _EXPANDABLE in settings:
        return None
    return TraceChange({"allocator": ",".join(part for part in (settings, _EXPANDABLE) if part)})


def smaller_batch(step: Step, parts: int) -> TraceChange | None:
    """The batch in so many parts; None where it cannot be divided so."""
    question = step.question
    batch = input_specs.batch_of(question.inputs)
    if batch % parts:
        return None
    return TraceChange(
        {
            "inputs": input_specs.with_batch(question.inputs, batch // parts, instead_of=batch),
            "targets": input_specs.with_batch(question.targets, batch // parts, instead_of=batch),
            "accumulate": STEADY,
        }
    )


def not_seen(_: Step) -> None:
    """A trace shows it in the program, or not at all."""


def _has_fp32_weights(step: Step) -> bool:
    return any(
        event.component == "parameters" and event.dtype == "float32" for event in step.trace.events
    )


def _can_be_remade(optimizer: Any) -> bool:
    """Whether the same kind can be made for other parameters."""
    is_made = hasattr(optimizer, "param_groups")
    return optimizer is not None and (
        not is_made or type(optimizer).__module__.startswith("torch.optim")
    )


def _remade(optimizer: Any) -> Any:
    return type(optimizer).__name__ if hasattr(optimizer, "param_groups") else optimizer
