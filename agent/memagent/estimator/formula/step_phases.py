"""The peaks of a step's phases: a stage's parts, added up at the moments that can be its peak.

1. The end of forward: all saved tensors, and what the loss holds while it is computed.
2. The start of backward: the same, with the gradients of the logits.
3. The walk back through the layers: activations go as gradients come. Both change linearly, so only
   the first and the last layer count. In a layer, gradients come as what it saved goes, those of
   attention last. That of embeddings that aren't tied comes after them.
4. The end of backward: all gradients. A tied embedding's second gradient exists before it is added
   to the first.
5. The optimizer's step: gradients and its temporaries; activations are gone.

With sharded parameters layers and gradients come and go (`sharded_phases`).
"""

from __future__ import annotations

from dataclasses import dataclass

from memagent.estimator.devices import CUBLAS_HANDLES, cublas_workspace_bytes
from memagent.estimator.formula.activations import Activations, activations
from memagent.estimator.formula.saved_tensors import cast_bytes
from memagent.estimator.formula.sharded_phases import sharded_phases, sharded_units
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.static_bytes import StaticBytes, static_bytes


@dataclass(frozen=True)
class StepPeaks:
    """One stage's parts and phases, in bytes.

    `activations` are what forward saves for backward, one recomputed layer included. `terms` are
    held throughout the step, besides parameters and state.
    """

    static: StaticBytes
    activations: float
    working: float
    terms: dict[str, float]
    phases: dict[str, float]

    @property
    def peak(self) -> float:
        return max(self.phases.values())


def step_peaks(spec: TrainingSpec, *, first: bool = True, last: bool = True) -> StepPeaks:
    """Return the peaks of a stage with the embeddings (`first`), the head (`last`), or both."""
    static = static_bytes(spec, first=first, last=last)
    parts = activations(spec, first=first, last=last)
    terms = _terms(spec, static, parts.casts)
    phases = _sharded if spec.parallel.shards(3) > 1 else _phases
    return StepPeaks(
        static=static,
        activations=parts.stack + parts.recomputed + parts.edges + parts.loss.saved,
        working=parts.working + static.temporaries,
        terms=terms,
        phases=phases(spec, static, terms, parts),
    )


def _sharded(
    spec: TrainingSpec, static: StaticBytes, terms: dict[str, float], parts: Activations
) -> dict[str, float]:
    gradients = _gradients(spec, static)
    accumulates = spec.accumulation > 1 or not spec.set_to_none
    return sharded_phases(
        spec,
        static,
        parts,
        fixed=terms.get("cublas_workspace", 0.0) + terms.get("buffers", 0.0) + parts.casts,
        gradients=gradients,
        accumulated=gradients if accumulates else 0.0,
    )


def _phases(
    spec: TrainingSpec, static: StaticBytes, terms: dict[str, float], parts: Activations
) -> dict[str, float]:
    persistent = static.parameters + static.state + sum(terms.values()) - parts.casts
    gradients = _gradients(spec, static)
    before = gradients if spec.accumulation > 1 or not spec.set_to_none else 0.0
    full = persistent + parts.casts + parts.stack + parts.edges + before
    start = walk = full
    if spec.checkpointing == "full":
        # autocast's cache drops the layers' casts at the end of forward: each layer casts again,
        # after the head's casts went with its gradient
        plan = spec.parallel
        layers = cast_bytes(spec, head=False) / (plan.tensor * plan.pipeline)
        start = full - layers
        walk = full - parts.casts + layers / spec.model.all_layers
    late = 0.0 if before else static.late_gradient
    first = parts.working if before else parts.tail - static.layer_gradients
    backward = (
        start + parts.loss.backward + (parts.cache if spec.holds_output else 0.0),
        walk + parts.output + parts.recomputed + parts.tail,
        persistent + gradients - late + parts.output + parts.largest + first,
        persistent + gradients + parts.output + _tied_gradients(spec, static),
        persistent + gradients + parts.output + _between_stacks(spec, static, parts),
    )
    # after backward ZeRO's buckets are scattered; DDP's stay
    scattered = terms.get("reduction_buckets", 0.0) if spec.parallel.zero >= 2 else 0.0
    forward = max(parts.loss.forward + parts.local + parts.cache, parts.pair / 2)
    return {
        "forward": full + forward + parts.carried,
        "backward": max(backward),
        "optimizer": persistent - scattered + static.gradients + static.temporaries + parts.carried,
    }


def _tied_gradients(spec: TrainingSpec, static: StaticBytes) -> float:
    """Return what a tied embedding's gradient takes beside `gradients`, while its parts add up.

    Autograd adds in place only to a tensor with its own storage. Under autocast the head's part is
    such a copy; else it is a view, so both parts and their sum are held at once. Accumulated
    gradients are held besides. With two stacks the sum of the head's and the decoder's parts has
    its own storage when the encoder's part comes.
    """
    copies = 1 if spec.dtype_bytes.autocast or spec.model.decoder_layers else 2
    return static.embedding_gradient * (copies + (spec.accumulation > 1))


def _between_stacks(spec: TrainingSpec, static: StaticBytes, parts: Activations) -> float:
    """Return what is held beside `gradients` when the decoder's part is added to the head's.

    The encoder's gradients are not there yet, and what it has saved still is.
    """
    if not spec.model.decoder_layers:
        return 0.0
    copies = 1 if spec.dtype_bytes.autocast else 2
    added = static.embedding_gradient * (copies + (spec.accumulation > 1))
    return added + parts.encoder - spec.model.layers * static.layer_gradients


def _gradients(spec: TrainingSpec, static: StaticBytes) -> float:
    """Return the gradients of one rank; accumulating with torch's `no_sync` keeps them whole."""
    whole = spec.accumulation > 1 and spec.no_sync and spec.parallel.zero >= 2
    return static.gradients * (spec.parallel.shards(2) if whole else 1)


def _terms(spec: TrainingSpec, static: StaticBytes, casts: float) -> dict[str, float]:
    """Return by name what is held throughout the step besides parameters and state."""
    plan, terms = spec.parallel, {}
    if casts:
        terms["weight_casts"] = casts
    if spec.model.style.mask_buffer:
        terms["buffers"] = float(spec.model.positions**2)
    if plan.gathered_units:
        units = sharded_units(spec, static, 0.0)
        terms["gathered_layers"] = units.root + units.gathered + units.whole
    elif spec.offload_parameters:
        terms["gathered_layers"] = 2 * max(static.layer, static.root)
    if static.buckets and plan.zero < 3:
        terms["reduction_buckets"] = static.buckets
    if spec.device == "cuda":
        workspace = cublas_workspace_bytes(spec.card.capability if spec.card else None)
        terms["cublas_workspace"] = float(CUBLAS_HANDLES * workspace)
    return terms
