"""The moments of one step at which memory can peak, on one stage of the pipeline.

1. The end of forward: everything kept for backward, and what the loss holds while it is computed.
2. The start of backward: the same, with the gradients of the logits.
3. The walk back through the layers: activations go as gradients come. Both are straight lines, so only the first and the last layer count.
4. The end of backward: all gradients; a tied embedding's second gradient is made before it is added to the first.
5. The optimizer's step: gradients and its temporaries; activations are gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from memagent.estimator.devices import CUBLAS_WORKSPACE_BYTES, HANDLES
from memagent.estimator.formula.loss import LossBytes, held_output_bytes, loss_bytes
from memagent.estimator.formula.saved_tensors import cast_bytes
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.static_bytes import StaticBytes, static_bytes
from memagent.estimator.formula.transients import (
    activation_stack,
    edge_bytes,
    local_bytes,
    surviving_bytes,
    working_bytes,
)

_NO_LOSS = LossBytes(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Moments:
    """One stage's parts and phases, in bytes. `activations` are what forward leaves for backward, one recomputed layer included."""

    static: StaticBytes
    activations: float
    working: float
    terms: dict[str, float]
    phases: dict[str, float]

    @property
    def peak(self) -> float:
        return max(self.phases.values())


@dataclass(frozen=True)
class _Activations:
    """What input-dependent tensors take, in bytes: what layers keep until backward, one of them while it is recomputed, the largest,
    what is kept outside of layers, casts of weights, one layer's working memory, and what only forward's locals hold at its end."""

    stack: float = 0.0
    recomputed: float = 0.0
    largest: float = 0.0
    edges: float = 0.0
    casts: float = 0.0
    working: float = 0.0
    local: float = 0.0
    output: float = 0.0
    """What goes only when the caller drops the output: logits and a cache."""
    cache: float = 0.0
    loss: LossBytes = _NO_LOSS


def moments(spec: TrainingSpec, *, first: bool = True, last: bool = True) -> Moments:
    """Of the stage that holds the embeddings, the head, or both."""
    static = static_bytes(spec, first=first, last=last)
    # of what is no transformer nothing is known of its activations
    found = (
        _Activations()
        if spec.model.parameters is not None
        else _activations(spec, first=first, last=last)
    )
    terms = _terms(spec, static, found.casts)
    held = static.parameters + static.state + sum(terms.values()) - found.casts
    kept = found.stack + found.recomputed + found.edges + found.loss.kept
    return Moments(
        static, kept, found.working + static.temporaries, terms, _phases(spec, static, held, found)
    )


def _activations(spec: TrainingSpec, *, first: bool, last: bool) -> _Activations:
    plan, shape = spec.parallel, spec.model
    layers, decoders = shape.layers / plan.pipeline, shape.decoder_layers / plan.pipeline
    stack, recomputed, largest = activation_stack(spec, layers=layers, decoders=decoders)
    cache = surviving_bytes(spec, layers=layers + decoders)
    return _Activations(
        stack=stack * (plan.in_flight() if first else 1),
        recomputed=recomputed,
        largest=largest,
        edges=edge_bytes(spec),
        casts=cast_bytes(spec) / (plan.tensor * plan.pipeline),
        working=working_bytes(spec),
        local=local_bytes(spec) if last else 0.0,
        output=held_output_bytes(spec) + (cache if spec.keeps_output else 0.0),
        cache=cache,
        loss=loss_bytes(spec) if last else _NO_LOSS,
    )


def _phases(
    spec: TrainingSpec, static: StaticBytes, held: float, found: _Activations
) -> dict[str, float]:
    gradients = _gradients(spec, static)
    before = gradients if spec.accumulation > 1 or not spec.set_to_none else 0.0
    full = held + found.casts + found.stack + found.edges + before
    # a checkpointed layer's casts go with autocast's cache at the end of forward, and are made again for it alone
    back = full - (
        found.casts * (1 - 1 / spec.model.all_layers) if spec.checkpointing == "full" else 0.0
    )
    backward = (
        back + found.loss.backward + (found.cache if spec.keeps_output else 0.0),
        back + found.output + found.recomputed + found.working,
        held + before + (gradients - before) + found.output + found.largest + found.working,
        held + gradients + found.output + static.embedding_gradient,
    )
    return {
        "forward": full + max(found.loss.forward + found.local + found.cache, found.working / 2),
        "backward": max(backward),
        "optimizer": held + static.gradients + static.temporaries,
    }


def _gradients(spec: TrainingSpec, static: StaticBytes) -> float:
    """Accumulating without synchronisation keeps whole gradients, whatever ZeRO would divide (torch's `no_sync`)."""
    whole = spec.accumulation > 1 and spec.no_sync and spec.parallel.zero >= 2
    return static.gradients * (spec.parallel.shards(2) if whole else 1)


def _terms(spec: TrainingSpec, static: StaticBytes, casts: float) -> dict[str, float]:
    """What is held throughout beside parameters and state, by name."""
    plan, found = spec.parallel, {}
    if casts:
        found["weight_casts"] = casts
    if plan.gathered_units:
        # the gathered layers in the compute dtype, and one layer's gradients before they are scattered
        units = max(1, spec.model.all_layers) if not plan.reshard else plan.gathered_units
        share = spec.numbers.compute / spec.numbers.weight
        found["gathered_layers"] = static.unit * share * units + (
            static.unit * share if spec.lora_rank is None else 0.0
        )
    elif spec.offload_parameters:
        found["gathered_layers"] = 2 * static.unit
    if static.buckets:
        found["reduction_buckets"] = static.buckets
    if spec.device == "cuda":
        workspace = spec.gpu_rule.cublas_bytes if spec.gpu_rule else CUBLAS_WORKSPACE_BYTES
        found["cublas_workspace"] = float(HANDLES * workspace)
    return found
