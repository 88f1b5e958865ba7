"""All tensors of a stage that depend on its input, from `saved_tensors` and `transients`."""

from __future__ import annotations

from dataclasses import dataclass

from memagent.estimator.formula.saved_tensors import cast_bytes
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.transients import (
    LossBytes,
    activation_stack,
    edge_bytes,
    held_output_bytes,
    last_norm_bytes,
    layer_backward,
    loss_bytes,
    surviving_cache_bytes,
)

_NO_LOSS = LossBytes(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Activations:
    """Bytes of tensors that depend on the input.

    - stack: saved by the layers. edges: saved outside of them.
    - encoder: that of the first of two stacks.
    - recomputed: one layer under checkpointing. largest: the largest layer.
    - working: temporaries of one layer's backward. tail: with its weights' gradients, beyond what
      it saved. pair: temporaries with the widest pair of its gradients.
    - local: only lives until the end of forward.
    - output: freed when the caller drops the output (logits and a cache). carried: that of the
      step before.
    """

    stack: float
    encoder: float
    recomputed: float
    largest: float
    edges: float
    casts: float
    working: float
    tail: float
    pair: float
    local: float
    output: float
    carried: float
    cache: float
    loss: LossBytes


def activations(spec: TrainingSpec, *, first: bool, last: bool) -> Activations:
    """Return the parts of a stage with the embeddings (`first`), the head (`last`), or both."""
    plan, shape = spec.parallel, spec.model
    layers, decoders = shape.layers / plan.pipeline, shape.decoder_layers / plan.pipeline
    stack, recomputed, largest = activation_stack(spec, layers=layers, decoders=decoders)
    encoder = activation_stack(spec, layers=layers, decoders=0)[0] if decoders else 0.0
    cache = surviving_cache_bytes(spec, layers=layers + decoders)
    backward = layer_backward(spec)
    output = held_output_bytes(spec) + (cache if spec.holds_output else 0.0)
    return Activations(
        stack=stack * (plan.in_flight() if first else 1),
        encoder=encoder,
        recomputed=recomputed,
        largest=largest,
        edges=edge_bytes(spec),
        casts=cast_bytes(spec) / (plan.tensor * plan.pipeline),
        working=backward.working,
        tail=backward.tail,
        pair=backward.pair,
        local=last_norm_bytes(spec) if last else 0.0,
        output=output,
        carried=output if spec.carries_output else 0.0,
        cache=cache,
        loss=loss_bytes(spec) if last else _NO_LOSS,
    )
