"""`POST /api/v1/estimate`: the formula estimator for people who have no model at hand, only its
name, its config.json or its shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from sqlalchemy.orm import Session

from memagent.errors import EstimateError
from memagent.estimator.advice.by_formula import advise
from memagent.estimator.devices import GPUS
from memagent.estimator.formula.optimizers import optimizer_named
from memagent.estimator.formula.parallel import Parallel
from memagent.estimator.formula.precision import precision_named, quantised_bytes
from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.shapes import ModelShape
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import TransformerShape, estimate_training
from memagent.estimator.huggingface import from_config
from memagent.estimator.search import largest_batch
from memagent.wire.messages import Bytes
from memagent_server.http.problems import Problem
from memagent_server.store.cuda_contexts import context_of

Size = Annotated[int, Meta(ge=1, le=10**8)]
Ranks = Annotated[int, Meta(ge=1, le=10**6)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
T = TypeVar("T")

MOST_ADVICE = 8
_LARGEST_BATCH = 2**16


class EstimateBody(msgspec.Struct, kw_only=True):
    """A model, by `model` (a preset's name), `config` (the content of a config.json) or its shape,
    and how it is trained. The fields of training are those of
    `memagent.estimator.formula.spec.TrainingSpec` and `parallel.Parallel`.
    """

    model: Name | None = None
    config: dict[str, Any] | None = None
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
    precision: Name = "mixed"
    optimizer: Name = "adamw"
    implementation: Literal["single", "foreach", "fused"] | None = None
    checkpointing: Literal["none", "selective", "full"] = "none"
    checkpoint_every: Size = 1
    attention: Literal["eager", "math", "sdpa"] = "sdpa"
    loss: Literal["eager", "inplace", "chunked", "fused"] = "eager"
    accumulation: Size = 1
    use_cache: bool = False
    lora_rank: Size | None = None
    lora_targets: Annotated[list[Name], Meta(min_length=1, max_length=50)] | None = None
    quantised: Name | None = None
    ranks: Ranks = 1
    zero: Annotated[int, Meta(ge=0, le=3)] = 0
    tensor: Ranks = 1
    pipeline: Ranks = 1
    offload_optimizer: bool = False
    offload_parameters: bool = False

    gpu: Name | None = None
    context_bytes: Bytes | None = None
    limit_bytes: Bytes | None = None


_SHAPE = ("layers", "hidden", "heads", "vocab", "sequence")
_TRAINING = (
    "batch", "sequence", "precision", "optimizer", "implementation", "checkpointing", "checkpoint_every", "attention", "loss",
    "accumulation", "use_cache", "lora_rank", "quantised", "offload_optimizer", "offload_parameters", "parameter_count",
)  # fmt: skip


def answer(session: Session, request: EstimateBody) -> dict[str, Any]:
    """The estimate with advice and the largest batch that fits, JSON-ready.

    Raises Problem 422 that names the field at fault.
    """
    shape = _model(request)
    _known("optimizer", optimizer_named, request.optimizer)
    _known("precision", precision_named, request.precision)
    if request.quantised is not None:
        _known("quantised", quantised_bytes, request.quantised)
    context_bytes = _context(session, request)
    training: dict[str, Any] = {name: getattr(request, name) for name in _TRAINING}
    if request.lora_targets:
        training["lora_targets"] = tuple(request.lora_targets)
    if request.gpu is not None and request.gpu.lower() in GPUS:
        training["gpu"] = request.gpu.lower()
    try:
        ranks = Parallel(
            data=request.ranks, zero=request.zero, tensor=request.tensor, pipeline=request.pipeline
        )
        spec = TrainingSpec(model=shape, parallel=ranks, **training)
        found = estimate_training(
            spec, limit_bytes=request.limit_bytes, context_bytes=context_bytes
        )
        limit = found.limit_bytes
        advice = advise(spec, limit, at_most=MOST_ADVICE, context_bytes=context_bytes)
        largest = largest_batch(spec, limit, most=_LARGEST_BATCH) if limit else None
    except EstimateError as error:
        raise Problem(422, str(error)) from error
    return {
        **found.to_dict(),
        "parameters": shape.parameter_count(),
        "largest_batch": largest,
        "advice": [msgspec.to_builtins(item) for item in advice],
    }


def _model(request: EstimateBody) -> ModelShape:
    if sum(given is not None for given in (request.model, request.config, request.layers)) != 1:
        raise Problem(422, "give one of model (a name), config (the content of a config.json), or layers, hidden, heads, "
                      "vocab and sequence", field="model")  # fmt: skip
    if request.model is not None:
        return _known("model", preset, request.model)
    if request.config is not None:
        return _known("config", from_config, request.config)
    for name in _SHAPE:
        if getattr(request, name) is None:
            raise Problem(422, f"{name} is needed with layers", field=name)
    shape = TransformerShape(
        **{
            name: getattr(request, name)
            for name in (*_SHAPE, "batch", "kv_heads", "ffn", "gated", "tied_embeddings")
        }
    )
    return shape.model()


def _known(field: str, look_up: Callable[[Any], T], value: Any) -> T:
    try:
        return look_up(value)
    except (EstimateError, TypeError, ValueError) as error:
        raise Problem(422, str(error), field=field) from error


def _context(session: Session, request: EstimateBody) -> int | None:
    """What is told; else what agents measured on a GPU of that name; else None: the estimator's own
    for the GPU, with its range.
    """
    if request.context_bytes is not None or request.gpu is None:
        return request.context_bytes
    known = context_of(session, request.gpu)
    if known is not None:
        return known.newest_bytes
    if request.gpu.lower() not in GPUS:
        raise Problem(
            422, f"GPU {request.gpu!r} is not known: use one of {', '.join(GPUS)}, the name of one that a run was seen on "
            "(GET /api/v1/contexts), or limit_bytes and context_bytes", field="gpu",
        )  # fmt: skip
    return None
