"""`POST /api/v1/estimate`: the formula estimator for a model's name, config.json or shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from memagent.errors import EstimateError, OptionError
from memagent.estimator.advice import advise
from memagent.estimator.advice.script_profile import lora_targets
from memagent.estimator.cards import Card, card_named
from memagent.estimator.formula.from_config import from_config
from memagent.estimator.formula.optimizers import optimizer_named
from memagent.estimator.formula.parallel import Parallel
from memagent.estimator.formula.precision import default_precision, precision_named, quantised_bytes
from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.shapes import ModelShape
from memagent.estimator.formula.spec import USUAL_LOOP, FsdpWrap, KbitTraining, Loop, TrainingSpec
from memagent.estimator.formula.training import estimate_formula
from memagent.estimator.request import FormulaRequest
from memagent.estimator.search import largest_batch
from memagent.wire.messages import Bytes
from memagent_server.http.problems import Problem
from memagent_server.schemas.base import JsonObject
from memagent_server.schemas.predictions import Estimate, PhasePeak
from memagent_server.store.cuda_contexts import context_of
from memagent_server.store.engine import Session

Size = Annotated[int, Meta(ge=1, le=10**8)]
Ranks = Annotated[int, Meta(ge=1, le=10**6)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
T = TypeVar("T")

MAX_ADVICE = 8
_MAX_BATCH = 2**16


class EstimateBody(msgspec.Struct, kw_only=True):
    """A model and its training.

    The model is a preset's name (`model`), the content of a config.json (`config`), or a shape
    (`layers` and so on). The training's fields are those of
    `memagent.estimator.formula.spec.TrainingSpec` and `Parallel`.
    """

    model: Name | None = None
    config: JsonObject | None = None
    layers: Size | None = None
    hidden: Size | None = None
    heads: Size | None = None
    vocab: Size | None = None
    kv_heads: Size | None = None
    ffn: Size | None = None
    gated: bool = False
    tied_embeddings: bool = False
    parameter_count: Annotated[int, Meta(ge=1, le=10**14)] | None = None

    batch: Size = 1
    sequence: Size | None = None
    precision: Name | None = None
    optimizer: Name = "adamw"
    implementation: Literal["single", "foreach", "fused"] | None = None
    checkpointing: Literal["none", "selective", "full"] = "none"
    checkpoint_every: Size = 1
    attention: Literal["eager", "math", "sdpa"] = "sdpa"
    loss: Literal["eager", "inplace", "chunked", "fused"] = "eager"
    accumulation: Size = 1
    loop: Loop = USUAL_LOOP
    use_cache: bool | None = None
    lora_rank: Size | None = None
    lora_targets: Annotated[list[Name], Meta(min_length=1, max_length=50)] | None = None
    quantised: Name | None = None
    kbit_training: KbitTraining | None = None
    transformers: Name | None = None
    ranks: Ranks = 1
    zero: Annotated[int, Meta(ge=0, le=3)] = 0
    fsdp_wrap: FsdpWrap | None = None
    tensor: Ranks = 1
    pipeline: Ranks = 1
    offload_optimizer: bool = False
    offload_parameters: bool = False

    gpu: Name | None = None
    context_bytes: Bytes | None = None
    limit_bytes: Bytes | None = None


_REQUIRED_SHAPE = ("layers", "hidden", "heads", "vocab", "sequence")
_TRAINING = (
    "batch",
    "sequence",
    "optimizer",
    "implementation",
    "checkpointing",
    "checkpoint_every",
    "attention",
    "loss",
    "accumulation",
    "loop",
    "use_cache",
    "lora_rank",
    "quantised",
    "kbit_training",
    "transformers",
    "fsdp_wrap",
    "offload_optimizer",
    "offload_parameters",
    "parameter_count",
)


def answer(session: Session, body: EstimateBody) -> Estimate:
    """Return the estimate with advice and the largest batch that fits.

    Raises Problem 422 that names the field at fault.
    """
    shape = _model(body)
    _look_up("optimizer", optimizer_named, body.optimizer)
    precision = body.precision or default_precision(
        lora_rank=body.lora_rank, zero=body.zero, kbit_training=body.kbit_training
    )
    _look_up("precision", precision_named, precision)
    if body.quantised is not None:
        _look_up("quantised", quantised_bytes, body.quantised)
    training: dict[str, Any] = {name: getattr(body, name) for name in _TRAINING}
    training["precision"] = precision
    if body.lora_rank is not None:
        targets = body.lora_targets or lora_targets(TrainingSpec(shape))
        training["lora_targets"] = tuple(targets)
    card, context_bytes = _device(session, body)
    if card is not None:
        training["gpu"] = card.key
    try:
        ranks = Parallel(
            data=body.ranks, zero=body.zero, tensor=body.tensor, pipeline=body.pipeline
        )
        spec = TrainingSpec(model=shape, parallel=ranks, **training)
        spec.check_positions()
        request = FormulaRequest(spec, body.limit_bytes, context_bytes)
        estimate = estimate_formula(request)
        advice = advise(request, estimate)[:MAX_ADVICE]
        largest = None
        if estimate.limit_bytes is not None:
            largest = largest_batch(request, estimate_formula, max_batch=_MAX_BATCH).batch
    except EstimateError as error:
        raise Problem(422, str(error), field=_field(error)) from error
    return Estimate(
        method=estimate.method,
        peak_allocated_bytes=estimate.peak_allocated_bytes,
        peak_reserved_bytes=estimate.peak_reserved_bytes,
        peak_device_bytes=estimate.peak_device_bytes,
        intervals=dict(estimate.intervals),
        limit_bytes=estimate.limit_bytes,
        verdict=estimate.outcome,
        fits=estimate.fits,
        margin_bytes=estimate.margin_bytes,
        fit_probability=estimate.fit_probability,
        components=dict(estimate.components),
        phases=dict(estimate.phases),
        timeline=[PhasePeak(phase, size) for phase, size in estimate.timeline],
        terms=dict(estimate.terms),
        assumptions=dict(estimate.assumptions),
        advice=list(advice),
        parameters=shape.parameter_count(),
        largest_batch=largest,
    )


def _field(error: EstimateError) -> str | None:
    """Return the body's field at fault, None if the error names none of them."""
    option = error.option if isinstance(error, OptionError) else None
    return option if option in EstimateBody.__struct_fields__ else None


def _model(body: EstimateBody) -> ModelShape:
    if sum(value is not None for value in (body.model, body.config, body.layers)) != 1:
        raise Problem(
            422,
            "give one of model (a name), config (the content of a config.json), or layers, hidden, "
            "heads, vocab and sequence",
            field="model",
        )
    if body.model is not None:
        return _look_up("model", preset, body.model)
    if body.config is not None:
        return _look_up("config", from_config, body.config)
    for name in _REQUIRED_SHAPE:
        if getattr(body, name) is None:
            raise Problem(422, f"{name} is required with layers", field=name)
    names = ("layers", "hidden", "heads", "vocab", "kv_heads", "ffn", "tied_embeddings")
    numbers: dict[str, Any] = {name: getattr(body, name) for name in names}
    if body.gated:
        return ModelShape(**numbers, family="llama")
    # an ungated feed-forward is in GPT-2's block: learned positions, and dropout
    return ModelShape(
        **numbers, family="gpt2", activation="gelu", positions=body.sequence or 0, dropout=0.1
    )


def _look_up(field: str, find: Callable[[Any], T], value: Any) -> T:
    try:
        return find(value)
    except (EstimateError, TypeError, ValueError) as error:
        raise Problem(422, str(error), field=field) from error


def _device(session: Session, body: EstimateBody) -> tuple[Card | None, int | None]:
    """Return the card, and the given context or the one that agents measured on such a GPU.

    Without a context the estimator takes the usual range. A GPU that a run was on may be unknown to
    the registry: its limit is then in the request.
    """
    if body.gpu is None:
        return None, body.context_bytes
    measured = context_of(session, body.gpu)
    try:
        card = card_named(body.gpu)
    except EstimateError as error:
        if measured is None:
            raise Problem(
                422, f"{error} GET /api/v1/contexts has your GPUs.", field="gpu"
            ) from error
        card = None
    measured = measured or (context_of(session, card.name) if card else None)
    if body.context_bytes is not None or measured is None:
        return card, body.context_bytes
    return card, measured.newest_bytes
