"""The shape of a transformer, and every matrix in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from memagent.errors import EstimateError, OptionError
from memagent.estimator.formula.families import Family, HeadKind, family_named

MatrixKind = Literal["linear", "expert", "embedding", "norm", "head"]
_DEFAULT_SEQUENCE = 2048


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight: `copies` of rows x cols, a bias of `rows` values; `layered`: part of a block."""

    name: str
    role: str
    rows: int
    cols: int
    copies: int = 1
    bias: bool = False
    kind: MatrixKind = "linear"
    layered: bool = True

    @property
    def parameters(self) -> int:
        return self.copies * self.rows * (self.cols + self.bias)


@dataclass(frozen=True)
class ModelShape:
    """A model by its numbers; None means the family's own value.

    - kv_heads: default heads. head_dim: default hidden / heads. ffn: default 4 x hidden.
    - layers: the encoder's if there are `decoder_layers`.
    - positions: rows of the table of positions (0 for rotary), `spare_positions` of which no token
      takes.
    - patch and image (pixels a side) describe a vision transformer.
    - use_cache: the config's own.
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
    spare_positions: int = 0
    token_types: int = 0
    decoder_layers: int = 0
    relative_buckets: int = 0
    experts: int = 0
    experts_per_token: int = 0
    image: int = 0
    patch: int = 0
    channels: int = 3
    labels: int = 0
    head: HeadKind | None = None
    qkv_bias: bool | None = None
    mlp_bias: bool | None = None
    dropout: float = 0.0
    attention_dropout: float | None = None
    use_cache: bool = True

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
    def head_kind(self) -> HeadKind:
        return self.style.head if self.head is None else self.head

    @property
    def activation_name(self) -> str:
        return self.activation or self.style.activation

    @property
    def ffn_width(self) -> int:
        return self.ffn or 4 * self.hidden

    @property
    def query_width(self) -> int:
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Return the width of k, which is also that of v."""
        return (self.kv_heads or self.heads) * self.head_width

    @property
    def head_width(self) -> int:
        return self.head_dim or self.hidden // self.heads

    @property
    def all_layers(self) -> int:
        return self.layers + self.decoder_layers

    @property
    def outputs(self) -> int:
        """Return the width of the model's output: vocabulary, labels, or 0 without a head."""
        head = self.head_kind
        return self.vocab if head in ("lm", "mlm") else self.labels if head == "classifier" else 0

    def resized(self, image: int) -> ModelShape:
        """Return the shape for images of this height and width.

        Raises OptionError if it takes none, or no patch of them is whole.
        """
        name = self.name or self.family
        if not self.patch:
            raise OptionError("image_size", f"is {image}: {name} takes no images, so leave it out")
        if image < self.patch:
            raise OptionError(
                "image_size", f"is {image}: a patch of {name} has {self.patch} pixels"
            )
        return replace(self, image=image)

    def sequence_for(self, sequence: int | None) -> int:
        """Return the positions of one sample: an image's patches and class token, or its tokens."""
        if self.patch:
            return (self.image // self.patch) ** 2 + 1
        return sequence or self.positions - self.spare_positions or _DEFAULT_SEQUENCE

    def parameter_count(self) -> int:
        """Count the values of all weights and biases, tied ones once."""
        return sum(matrix.parameters for matrix in matrices(self))


@lru_cache(maxsize=256)
def matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """List every matrix of the model."""
    return (*_embeddings(shape), *_blocks(shape), *_head(shape))


def _norm(
    shape: ModelShape, copies: int, width: int | None = None, *, layered: bool = True
) -> Matrix:
    values = (width or shape.hidden) * (2 if shape.style.norm == "layernorm" else 1)
    return Matrix("norm", "norm", values, 1, copies, kind="norm", layered=layered)


def _embedding(name: str, rows: int, cols: int, copies: int = 1) -> Matrix:
    return Matrix(name, "embedding", rows, cols, copies, kind="embedding", layered=False)


def _embeddings(shape: ModelShape) -> Iterator[Matrix]:
    hidden, stacks = shape.hidden, 2 if shape.decoder_layers else 1
    tables = {"tokens": shape.vocab, "types": shape.token_types}
    yield from (_embedding(name, rows, hidden) for name, rows in tables.items() if rows)
    if shape.positions:
        yield _embedding("positions", shape.positions, hidden, stacks)
    if shape.patch:
        values = shape.channels * shape.patch**2
        yield Matrix("projection", "patches", hidden, values, bias=True, layered=False)
        yield _embedding("positions", shape.sequence_for(None) + 1, hidden)
    if shape.relative_buckets:
        yield _embedding("relative", shape.relative_buckets, shape.heads, stacks)
    if shape.style.embedding_norm:
        yield _norm(shape, stacks, layered=False)


def _blocks(shape: ModelShape) -> Iterator[Matrix]:
    style, layers = shape.style, shape.all_layers
    yield from _attention(shape, layers)
    yield from _attention(shape, shape.decoder_layers, cross=True)
    yield from _feed_forward(shape, layers)
    yield _norm(shape, style.norms * layers + shape.decoder_layers)
    if style.qk_norm:
        yield _norm(shape, 2 * layers, shape.head_width)
    if style.final_norm:
        yield _norm(shape, 2 if shape.decoder_layers else 1, layered=False)


def _attention(shape: ModelShape, copies: int, *, cross: bool = False) -> Iterator[Matrix]:
    if not copies:
        return
    style, hidden, q, kv = shape.style, shape.hidden, shape.query_width, shape.kv_width
    names = style.names
    biased = style.bias or (style.qkv_bias if shape.qkv_bias is None else shape.qkv_bias)
    prefix = "cross_" if cross else ""
    if style.fused_qkv:
        yield Matrix(names["qkv"], prefix + "qkv", q + 2 * kv, hidden, copies, biased)
    else:
        for role, width in (("q", q), ("k", kv), ("v", kv)):
            yield Matrix(names[role], prefix + role, width, hidden, copies, biased)
    # the output's bias follows the others' in Llama (`attention_bias`), not in Qwen2
    biased = style.bias or bool(shape.qkv_bias)
    yield Matrix(names["o"], prefix + "o", hidden, q, copies, biased)


def _feed_forward(shape: ModelShape, copies: int) -> Iterator[Matrix]:
    style, hidden, width = shape.style, shape.hidden, shape.ffn_width
    biased = style.bias if shape.mlp_bias is None else shape.mlp_bias
    if shape.experts:
        yield Matrix("gate", "router", shape.experts, hidden, copies)
        copies *= shape.experts
    kind: MatrixKind = "expert" if shape.experts else "linear"
    if shape.is_gated:
        name = style.names.get("gate", "gate_proj")
        yield Matrix(name, "gate", width, hidden, copies, biased, kind)
    up = style.names["up"] if shape.is_gated else style.names.get("ungated_up", style.names["up"])
    yield Matrix(up, "up", width, hidden, copies, biased, kind)
    yield Matrix(style.names["down"], "down", hidden, width, copies, biased, kind)


def _head_matrix(name: str, rows: int, cols: int, *, role: str = "", bias: bool = False) -> Matrix:
    return Matrix(name, role or name, rows, cols, bias=bias, kind="head", layered=False)


def _has_pooler(shape: ModelShape) -> bool:
    """Return True if a layer follows the encoder: DistilBERT's only exists before a classifier."""
    if shape.head_kind == "none":
        return bool(shape.patch) or (shape.style.post_norm and shape.style.pooler)
    return shape.style.post_norm


def _head(shape: ModelShape) -> Iterator[Matrix]:
    hidden, kind, style = shape.hidden, shape.head_kind, shape.style
    if kind == "mlm":
        yield _head_matrix("transform", hidden, hidden, bias=True)
        yield _norm(shape, 1, layered=False)
        yield _head_matrix("bias", shape.vocab, 1, role="head_bias")
    if kind in ("lm", "mlm"):
        if not shape.is_tied:
            yield _head_matrix("lm_head", shape.vocab, hidden, bias=style.head_bias)
    elif not shape.decoder_layers and _has_pooler(shape):
        yield _head_matrix("pooler", hidden, hidden, bias=True)
    if kind == "classifier":
        # text decoders score without a bias (`GenericForSequenceClassification`)
        biased = bool(shape.patch) or style.post_norm
        yield _head_matrix("classifier", shape.labels, hidden, bias=biased)
