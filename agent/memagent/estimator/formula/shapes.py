"""The shape of a transformer, and from it every matrix it is made of: exact parameter counts, LoRA targets, what can be quantised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from memagent.errors import EstimateError
from memagent.estimator.formula.families import ALIASES, Family, Head, family_named

Kind = Literal["linear", "expert", "embedding", "norm", "head"]


@dataclass(frozen=True, slots=True)
class Matrix:
    """One kind of weight: `copies` of rows x cols (and a bias of `rows` values). `layered` where it belongs to a repeated block."""

    name: str
    role: str
    rows: int
    cols: int
    copies: int = 1
    bias: bool = False
    kind: Kind = "linear"
    layered: bool = True

    @property
    def parameters(self) -> int:
        return self.copies * self.rows * (self.cols + self.bias)


@dataclass(frozen=True)
class ModelShape:
    """A model from its numbers. `kv_heads` defaults to heads, `head_dim` to hidden / heads, `ffn` to 4 x hidden; what is None is the
    family's.

    `layers` are the encoder's where `decoder_layers` is given too (encoder-decoder). `positions` are learned ones (0 for rotary).
    `patch` and `image` (pixels a side) make it a vision transformer. `parameters` given by hand stands for a model that is no
    transformer (ResNet): its activations are then not reckoned.
    """

    layers: int
    hidden: int
    heads: int
    vocab: int = 0
    name: str = ""
    family: str = "llama"
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    gated: bool | None = None
    tied_embeddings: bool | None = None
    activation: str | None = None
    positions: int = 0
    token_types: int = 0
    decoder_layers: int = 0
    relative_buckets: int = 0
    experts: int = 0
    experts_per_token: int = 0
    image: int = 0
    patch: int = 0
    channels: int = 3
    labels: int = 0
    head: Head | None = None
    qkv_bias: bool | None = None
    mlp_bias: bool | None = None
    dropout: float = 0.0
    attention_dropout: float | None = None
    parameters: int | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads"):
            if getattr(self, name) < 1:
                raise EstimateError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise EstimateError(
                f"experts_per_token is {self.experts_per_token} of {self.experts} experts"
            )
        family_named(self.family)

    @property
    def style(self) -> Family:
        return family_named(self.family)

    @property
    def is_gated(self) -> bool:
        return self.style.gated if self.gated is None else self.gated

    @property
    def is_tied(self) -> bool:
        return self.style.tied if self.tied_embeddings is None else self.tied_embeddings

    @property
    def kind_of_head(self) -> Head:
        return self.style.head if self.head is None else self.head

    @property
    def activation_name(self) -> str:
        return self.activation or self.style.activation

    @property
    def ffn_width(self) -> int:
        return self.ffn or 4 * self.hidden

    @property
    def query_width(self) -> int:
        """Heads x head_dim: what attention works on."""
        return self.heads * self.dimension

    @property
    def kv_width(self) -> int:
        """Width of k, and of v."""
        return (self.kv_heads or self.heads) * self.dimension

    @property
    def dimension(self) -> int:
        return self.head_dim or self.hidden // self.heads

    @property
    def all_layers(self) -> int:
        return self.layers + self.decoder_layers

    @property
    def outputs(self) -> int:
        """Width of the model's output: vocabulary, labels, or 0 where it has no head."""
        head = self.kind_of_head
        return self.vocab if head in ("lm", "mlm") else self.labels if head == "classifier" else 0

    def sequence_for(self, sequence: int | None) -> int:
        """Positions of one sample: patches and the class token of an image, else what is asked for, else the model's own, else 2048."""
        if self.patch:
            return (self.image // self.patch) ** 2 + 1
        return sequence or self.positions or 2048

    def parameter_count(self) -> int:
        """Values of all weights and biases, tied ones once."""
        return (
            self.parameters
            if self.parameters is not None
            else sum(matrix.parameters for matrix in matrices(self))
        )


@lru_cache(maxsize=256)
def matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """All that the model is made of."""
    if shape.parameters is not None:
        return (Matrix("weights", "weights", shape.parameters, 1, layered=False),)
    parts = [*_embeddings(shape), *_blocks(shape), *_head(shape)]
    return tuple(parts)


def _norm(
    shape: ModelShape, copies: int, width: int | None = None, *, layered: bool = True
) -> Matrix:
    values = (width or shape.hidden) * (2 if shape.style.norm == "layernorm" else 1)
    return Matrix("norm", "norm", values, 1, copies, kind="norm", layered=layered)


def _embeddings(shape: ModelShape) -> Iterator[Matrix]:
    h = shape.hidden
    for name, rows in (
        ("tokens", shape.vocab),
        ("positions", shape.positions),
        ("types", shape.token_types),
    ):
        if rows:
            yield Matrix(name, "embedding", rows, h, kind="embedding", layered=False)
    if shape.patch:
        yield Matrix(
            "projection", "patches", h, shape.channels * shape.patch**2, bias=True, layered=False
        )
        yield Matrix(
            "positions",
            "embedding",
            shape.sequence_for(None) + 1,
            h,
            kind="embedding",
            layered=False,
        )
    if shape.relative_buckets:
        stacks = 2 if shape.decoder_layers else 1
        yield Matrix(
            "relative",
            "embedding",
            shape.relative_buckets,
            shape.heads,
            stacks,
            kind="embedding",
            layered=False,
        )
    if shape.style.embedding_norm:
        yield _norm(shape, 1, layered=False)


def _blocks(shape: ModelShape) -> Iterator[Matrix]:
    style, layers = shape.style, shape.all_layers
    yield from _attention(shape, layers)
    yield from _attention(shape, shape.decoder_layers, cross=True)
    yield from _feed_forward(shape, layers)
    yield _norm(shape, style.norms * layers + shape.decoder_layers)
    if style.qk_norm:
        yield _norm(shape, 2 * layers, shape.dimension)
    if style.final_norm:
        yield _norm(shape, 2 if shape.decoder_layers else 1, layered=False)


def _attention(shape: ModelShape, copies: int, *, cross: bool = False) -> Iterator[Matrix]:
    if not copies:
        return
    style, h, q, kv = shape.style, shape.hidden, shape.query_width, shape.kv_width
    names = style.names
    biased = style.bias or (style.qkv_bias if shape.qkv_bias is None else shape.qkv_bias)
    prefix = "cross_" if cross else ""
    if style.fused_qkv:
        yield Matrix(names["qkv"], prefix + "qkv", q + 2 * kv, h, copies, biased)
    else:
        for role, width in (("q", q), ("k", kv), ("v", kv)):
            yield Matrix(names[role], prefix + role, width, h, copies, biased)
    # the output's bias follows the others' in Llama (`attention_bias`), not in Qwen2
    yield Matrix(names["o"], prefix + "o", h, q, copies, style.bias or bool(shape.qkv_bias))


def _feed_forward(shape: ModelShape, copies: int) -> Iterator[Matrix]:
    style, h, f = shape.style, shape.hidden, shape.ffn_width
    biased = style.bias if shape.mlp_bias is None else shape.mlp_bias
    if shape.experts:
        yield Matrix("gate", "router", shape.experts, h, copies)
        copies *= shape.experts
    kind: Kind = "expert" if shape.experts else "linear"
    if shape.is_gated:
        yield Matrix(style.names.get("gate", "gate_proj"), "gate", f, h, copies, biased, kind)
    up = style.names["up"] if shape.is_gated else style.names.get("ungated_up", style.names["up"])
    yield Matrix(up, "up", f, h, copies, biased, kind)
    yield Matrix(style.names["down"], "down", h, f, copies, biased, kind)


def _head(shape: ModelShape) -> Iterator[Matrix]:
    h, kind, style = shape.hidden, shape.kind_of_head, shape.style
    if kind == "mlm":
        yield Matrix("transform", "transform", h, h, bias=True, kind="head", layered=False)
        yield _norm(shape, 1, layered=False)
        yield Matrix("bias", "head_bias", shape.vocab, 1, kind="head", layered=False)
    if kind in ("lm", "mlm"):
        if not shape.is_tied:
            yield Matrix(
                "lm_head",
                "lm_head",
                shape.vocab,
                h,
                bias=style.head_bias,
                kind="head",
                layered=False,
            )
    elif not shape.decoder_layers and (style.post_norm or (kind == "none" and shape.patch)):
        yield Matrix("pooler", "pooler", h, h, bias=True, kind="head", layered=False)
    if kind == "classifier":
        # text decoders score without a bias (`GenericForSequenceClassification`)
        biased = bool(shape.patch) or style.post_norm
        yield Matrix(
            "classifier", "classifier", shape.labels, h, bias=biased, kind="head", layered=False
        )


def is_alias(name: str) -> bool:
    """Whether this `model_type` is built like another family."""
    return name in ALIASES
