"""The peaks of a step whose parameters are sharded (FSDP, ZeRO-3), on one rank.

Each layer is a unit, the rest of the model (embeddings, last norm, head) the root unit. Sources:
torch/distributed/fsdp/_runtime_utils.py and _flat_param.py, and rehearsals of FSDP under
transformers' Trainer (docs/estimator-accuracy.md):

- A unit is gathered in the compute dtype before it runs, in forward and in backward, with the next
  one beside it. Layers are freed after their forward, the root is whole from forward to the end of
  backward.
- A unit's gradients are whole, in the compute dtype, until its backward ends. They are then copied
  into one flat tensor, reduced, and held as a shard in the dtype of the shards. So the head's
  gradient is held throughout backward: its unit ends last.
"""

from __future__ import annotations

from dataclasses import dataclass

from memagent.estimator.formula.activations import Activations
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.static_bytes import StaticBytes


@dataclass(frozen=True)
class ShardedUnits:
    """Bytes of the units of one rank.

    - layers: their number. whole: of all layers that stay gathered without resharding.
    - gathered: the layer in use and those prefetched.
    - root, layer: one gathered unit. head_gradient, layer_gradient, root_gradient: before they are
      sharded. layer_shard: one layer's share of the gradients after that.
    """

    layers: float
    whole: float
    gathered: float
    root: float
    layer: float
    head_gradient: float
    layer_gradient: float
    root_gradient: float
    layer_shard: float


def sharded_units(spec: TrainingSpec, static: StaticBytes, gradients: float) -> ShardedUnits:
    """Return the units; `gradients` are all that the rank holds after backward."""
    plan = spec.parallel
    layers = max(1, spec.model.all_layers / plan.pipeline)
    is_trained = spec.lora_rank is None
    share = static.layer / max(1.0, static.root + layers * static.layer)
    return ShardedUnits(
        layers=layers,
        whole=0.0 if plan.reshard else layers * static.layer,
        gathered=static.layer * min(plan.gathered_units, layers) if plan.reshard else 0.0,
        root=static.root,
        layer=static.layer if plan.reshard else 0.0,
        head_gradient=static.head_gradient if is_trained else 0.0,
        layer_gradient=static.layer if is_trained or spec.has_frozen_gradients else 0.0,
        root_gradient=static.root if is_trained else 0.0,
        layer_shard=gradients * (share if is_trained else 1 / layers),
    )


def sharded_phases(
    spec: TrainingSpec,
    static: StaticBytes,
    parts: Activations,
    *,
    fixed: float,
    gradients: float,
    accumulated: float,
) -> dict[str, float]:
    """Return the peaks of forward, backward and the optimizer's step in bytes.

    `fixed` is held whatever the phase, `gradients` after backward; `accumulated` of them are held
    before it.
    """
    units = sharded_units(spec, static, gradients - accumulated)
    constant = static.parameters + static.state + fixed + accumulated
    during = constant + units.root + units.whole
    saved = parts.stack + parts.edges
    forward = max(parts.loss.forward + parts.local + parts.cache, units.gathered + parts.pair / 2)
    backward = _backward(spec, units, parts)
    end = units.layers * units.layer_shard + 2 * units.root_gradient
    if spec.model.is_tied:  # the embedding's own gradient, before it is added to the head's
        end += units.head_gradient
    return {
        "forward": during + saved + forward + parts.carried,
        "backward": during + max(saved + backward[0], *backward[1:], end),
        "optimizer": static.parameters
        + static.state
        + fixed
        + static.gradients
        + static.temporaries
        + parts.carried,
    }


def _backward(
    spec: TrainingSpec, units: ShardedUnits, parts: Activations
) -> tuple[float, float, float]:
    """Return what backward adds: in the last layers, in the second and in the first one.

    That of the last layers holds what forward saved, too. No layer is prefetched beside the first.
    """
    through = parts.output + units.head_gradient
    compute = spec.dtype_bytes.compute
    stream = 2 * spec.tokens * spec.model.hidden * spec.dtype_bytes.residual
    ending = 2 * units.layer_gradient + stream
    # the last product's weight has its gradient before the layer's widest tensors go
    product = units.layer_gradient and spec.model.ffn_width * spec.model.hidden * compute
    inner = through + max(parts.largest + parts.working + product, ending)
    inner += parts.stack / units.layers if parts.recomputed else 0.0
    start = max(
        units.layer + parts.loss.backward + (parts.cache if spec.holds_output else 0.0),
        units.gathered + through + max(parts.recomputed + parts.working + product, ending),
    )
    second = max(0.0, units.layers - 2) * units.layer_shard + units.gathered + inner
    first = (units.layers - 1) * units.layer_shard + units.layer + inner
    return start, second, first
