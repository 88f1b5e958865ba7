"""`POST /api/v1/estimate`: the formula estimator for people who have no model at hand, only its shape."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from memagent.errors import EstimateError
from memagent.estimator.formula import TransformerShape, estimate_transformer
from memagent.wire.messages import Bytes
from memagent_server.problems import Problem

Size = Annotated[int, Meta(ge=1, le=10**8)]


class EstimateRequest(msgspec.Struct, kw_only=True):
    """A transformer's shape and how it is trained; the fields are those of `TransformerShape` and `estimate_transformer`."""

    layers: Size
    hidden: Size
    heads: Size
    vocab: Size
    sequence: Size
    batch: Size = 1
    kv_heads: Size | None = None
    ffn: Size | None = None
    gated: bool = False
    tied_embeddings: bool = False
    precision: Literal["fp32", "amp", "bf16", "fp16", "mixed", "fp8"] = "mixed"
    optimizer: Annotated[str, Meta(max_length=40)] = "adamw"
    checkpointing: Literal["none", "selective", "full"] = "none"
    attention: Literal["eager", "math", "sdpa"] = "sdpa"
    parameter_count: Annotated[int, Meta(ge=1, le=10**14)] | None = None
    context_bytes: Bytes = 0
    limit_bytes: Bytes | None = None


_SHAPE = ("layers", "hidden", "heads", "vocab", "sequence", "batch", "kv_heads", "ffn", "gated", "tied_embeddings")
_TRAINING = ("precision", "optimizer", "checkpointing", "attention", "parameter_count", "context_bytes", "limit_bytes")


def answer(request: EstimateRequest) -> dict[str, Any]:
    """The estimate, JSON-ready. Raises Problem 422 for an optimizer that is not known."""
    shape = TransformerShape(**{name: getattr(request, name) for name in _SHAPE})
    try:
        return estimate_transformer(shape, **{name: getattr(request, name) for name in _TRAINING}).to_dict()
    except EstimateError as error:
        raise Problem(422, str(error), field="optimizer") from error
