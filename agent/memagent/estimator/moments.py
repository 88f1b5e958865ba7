"""The moments of one step at which memory can peak, on one stage of the pipeline.

1. The end of forward: everything kept for backward, and what the loss holds while it is computed.
2. The start of backward: the same, with the gradients of the logits.
3. The walk back through the layers: activations go as gradients come. Both are straight lines, so only the first and the last layer count.
4. The end of backward: all gradients; a tied embedding's second gradient is made before it is added to the first.
5. The optimizer's step: gradients and its temporaries; activations are gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from memagent.estimator.devices import HANDLES
from memagent.estimator.loss import LossBytes, loss_bytes
from memagent.estimator.saved import cast_bytes
from memagent.estimator.spec import TrainingSpec
from memagent.estimator.weights import StaticBytes, static_bytes
from memagent.estimator.working import activation_stack, edge_bytes, working_bytes

_NO_LOSS = LossBytes(0.0, 0.0, 0.0)
_CUBLAS_BYTES = 8_519_680


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


def moments(spec: TrainingSpec, *, first: bool = True, last: bool = True) -> Moments:
    """Of the stage that holds the embeddings, the head, or both."""
    plan, shape = spec.parallel, spec.model
    static = static_bytes(spec, first=first, last=last)
    if shape.parameters is not None:  # no transformer: nothing is known of its activations
        terms = _terms(spec, static, 0.0)
        held = static.parameters + static.state + sum(terms.values())
        phases = _phases(spec, static, held, (0.0, 0.0, 0.0), (0.0, 0.0), _NO_LOSS, 0.0, 0.0)
        return Moments(static, 0.0, 0.0, terms, phases)
    layers, decoders = shape.layers / plan.pipeline, shape.decoder_layers / plan.pipeline
    copies = plan.in_flight() if first else 1
    stack, recomputed, largest = activation_stack(spec, layers=layers, decoders=decoders)
    edges = edge_bytes(spec)
    loss = loss_bytes(spec) if last else _NO_LOSS
    casts = cast_bytes(spec) / (plan.tensor * plan.pipeline)
    working = working_bytes(spec)
    terms = _terms(spec, static, casts)
    held = static.parameters + static.state + sum(terms.values()) - casts
    phases = _phases(
        spec, static, held, (stack * copies, recomputed, largest), (edges, casts), loss, working, _output(spec)
    )
    return Moments(static, stack * copies + recomputed + edges + loss.kept, working + static.temporaries, terms, phases)


def _phases(
    spec: TrainingSpec,
    static: StaticBytes,
    held: float,
    stack: tuple[float, float, float],
    edges: tuple[float, float],
    loss: LossBytes,
    working: float,
    output: float,
) -> dict[str, float]:
    kept, recomputed, largest = stack
    edge, casts = edges
    gradients = _gradients(spec, static)
    before = gradients if spec.accumulation > 1 or not spec.set_to_none else 0.0
    full = held + casts + kept + edge + before
    # a checkpointed layer's casts go with autocast's cache at the end of forward, and are made again for it alone
    back = full - (casts * (1 - 1 / spec.model.all_layers) if spec.checkpointing == "full" else 0.0)
    backward = (
        back + loss.backward,
        back + output + recomputed + working,
        held + before + (gradients - before) + output + largest + working,
        held + gradients + output + static.embedding_gradient,
    )
    return {
        "forward": full + max(loss.forward, working / 2),
        "backward": max(backward),
        "optimizer": held + static.gradients + static.temporaries,
    }


def _gradients(spec: TrainingSpec, static: StaticBytes) -> float:
    """Accumulating without synchronisation keeps whole gradients, whatever ZeRO would divide (torch's `no_sync`)."""
    whole = spec.accumulation > 1 and spec.no_sync and spec.parallel.zero >= 2
    return static.gradients * (spec.parallel.shards(2) if whole else 1)


def _output(spec: TrainingSpec) -> float:
    """Logits that the caller still holds while layers run backward."""
    if not spec.keeps_output or spec.loss != "eager":
        return 0.0
    return spec.output_tokens * spec.model.outputs * spec.numbers.compute / spec.parallel.tensor


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
        workspace = spec.gpu_rule.cublas_bytes if spec.gpu_rule else _CUBLAS_BYTES
        found["cublas_workspace"] = float(HANDLES * workspace)
    return found
