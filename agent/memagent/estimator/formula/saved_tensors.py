"""What autograd keeps for backward in one layer of a transformer, tensor by tensor.

1. Each operation saves what torch's derivatives.yaml says: a linear layer its input, LayerNorm its input and two statistics, GELU its
input,
   SDPA q, k, v, its output and a log-sum-exp (O(s)), eager attention its probabilities (O(s^2)).
2. A tensor that two operations save is one storage and counts once: attention's output is also its projection's input.
3. Under autocast the stream between layers is fp32, and every linear layer keeps its own cast copy of it.
4. A frozen linear layer does not keep its input; a LoRA adapter keeps one, in its own dtype.
5. Dropout keeps a mask: one byte a value on CUDA, the values' dtype on the CPU.

With a plain GELU, dropout and two bytes a value this adds up to the 34 s b h + 5 a s^2 b of Korthikanti et al. 2022 (arXiv 2205.05198,
equation 1); what it knows beyond that paper is gating, grouped heads, RMSNorm's fp32 copies, LoRA and transformers' own ways.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from memagent.estimator.formula.shapes import Matrix, matrices
from memagent.estimator.formula.spec import TrainingSpec

_BEFORE_OUTPUT = {
    "silu": 1,
    "swish": 1,
    "gelu": 1,
    "gelu_pytorch_tanh": 1,
    "gelu_fast": 4,
    "gelu_new": 4,
    "quick_gelu": 2,
    "relu": 0,
}
"""Tensors an activation function keeps beside its output: `gelu_new` of transformers is written out in plain operations, and keeps x, x
/ 2, tanh and 1 + tanh; ReLU keeps its output only."""


@dataclass
class Saved:
    """Bytes by name. `split` are those that tensor parallelism divides, `whole` those that it leaves (norms, dropout, their inputs)."""

    split: dict[str, float] = field(default_factory=dict)
    whole: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, size: float, *, split: bool = True) -> None:
        target = self.split if split else self.whole
        target[name] = target.get(name, 0.0) + size

    def on_rank(self, tensor: int, *, sequence: bool) -> float:
        """Bytes on one rank of a tensor-parallel group (Korthikanti et al., equations 2 and 4)."""
        return sum(self.split.values()) / tensor + sum(self.whole.values()) / (
            tensor if sequence else 1
        )

    @property
    def total(self) -> float:
        return self.on_rank(1, sequence=False)


def layer_saved(spec: TrainingSpec, *, decoder: bool = False) -> Saved:
    """One layer of the (first) stack, or of the decoder of an encoder-decoder, which attends to the encoder as well."""
    kept = Saved()
    length = spec.target_positions if decoder else spec.positions
    tokens = spec.batch * length
    _norm(spec, kept, tokens)
    attention(spec, kept, length, length)
    if decoder:
        _norm(spec, kept, tokens)
        attention(spec, kept, length, spec.positions, cross=True)
    if spec.model.style.parallel:
        kept.add("norms", 8 * tokens, split=False)
    elif spec.model.style.norms > 1:
        _norm(spec, kept, tokens)
    _feed_forward(spec, kept, tokens)
    return kept


def edges_saved(spec: TrainingSpec) -> Saved:
    """What is kept outside of the layers: embeddings, last norm, the head's input, the batch itself. Logits are the loss's."""
    shape, numbers, kept = spec.model, spec.numbers, Saved()
    tokens, h = spec.tokens, shape.hidden
    kept.add("batch", 3 * 8 * tokens if not shape.patch else 8 * spec.batch, split=False)
    if shape.patch:
        kept.add(
            "pixels", spec.batch * shape.channels * shape.image**2 * numbers.compute, split=False
        )
    _mask(spec, kept, tokens * h, shape.dropout)
    if shape.style.embedding_norm:
        _norm(spec, kept, tokens)
    if shape.style.final_norm:
        _norm(spec, kept, tokens)
    if shape.decoder_layers:
        targets = spec.batch * spec.target_positions
        _norm(spec, kept, targets)
        _mask(spec, kept, (2 * targets + tokens) * h, shape.dropout)
        if shape.style.norm == "t5norm" and spec.attention_path != "eager":
            kept.add("relative_positions", 2 * shape.heads * spec.positions**2 * numbers.compute)
        if spec.lora_rank is None and not numbers.autocast:
            kept.add("encoder_output", tokens * h * numbers.compute, split=False)
    _head(spec, kept)
    return kept


def _head(spec: TrainingSpec, kept: Saved) -> None:
    shape, numbers = spec.model, spec.numbers
    if spec.lora_rank is not None or shape.kind_of_head not in ("lm", "mlm"):
        return
    values = spec.output_tokens * shape.hidden
    if shape.kind_of_head == "mlm":
        kept.add("head_transform", values * (2 * numbers.compute + numbers.residual), split=False)
    kept.add("head_input", values * numbers.compute, split=False)


def _norm(spec: TrainingSpec, kept: Saved, tokens: int, width: int | None = None) -> None:
    """Input, and what is computed from it; the output is what the next linear layer keeps."""
    numbers, kind, trained = spec.numbers, spec.model.style.norm, spec.lora_rank is None
    values = tokens * (width or spec.model.hidden)
    residual = numbers.residual
    if kind == "layernorm" or spec.fused_norms:
        kept.add("norms", values * residual + 8 * tokens, split=False)
        return
    # the squares want fp32: a copy, unless the stream is fp32 already
    size = 4.0 + (residual if kind == "t5norm" and residual < 4 else 0.0)
    normalised = 4.0 if kind == "gemmanorm" else residual
    kept.add("norms", values * (size + (normalised if trained else 0.0)) + 4 * tokens, split=False)


def _mask(
    spec: TrainingSpec, kept: Saved, values: float, probability: float, *, split: bool = False
) -> None:
    if probability > 0:
        kept.add(
            "dropout", values * (1 if spec.device == "cuda" else spec.numbers.compute), split=split
        )


def _linear_input(
    spec: TrainingSpec,
    kept: Saved,
    name: str,
    values: float,
    roles: tuple[str, ...],
    *,
    source: float,
    split: bool,
) -> None:
    """The input that linear layers of these roles keep. `source` is its bytes a value as it comes."""
    numbers = spec.numbers
    layers = [matrix for matrix in matrices(spec.model) if matrix.role in roles and matrix.layered]
    keeping = (
        layers
        if spec.lora_rank is None
        else [matrix for matrix in layers if spec.is_target(matrix)]
    )
    if not keeping:
        return
    size = numbers.saved_input if spec.lora_rank is None or numbers.autocast else spec.lora_bytes
    # one that is cast is cast by each layer for itself
    copies = len(keeping) if size != source and numbers.stored is None else 1
    kept.add(name, values * size * copies, split=split)
    if spec.lora_rank is not None:
        _adapters(spec, kept, values, keeping, size)


def _adapters(
    spec: TrainingSpec, kept: Saved, values: float, targets: list[Matrix], size: float
) -> None:
    """Between its two matrices an adapter keeps rank values a token; its dropout a mask and a copy."""
    rank = spec.lora_rank or 0
    for matrix in targets:
        kept.add("lora", values / matrix.cols * rank * size)
        if spec.lora_dropout > 0:
            kept.add("lora", values * (1 + size))


def attention(
    spec: TrainingSpec, kept: Saved, queries: int, keys: int, *, cross: bool = False
) -> None:
    """Attention of one layer: its inputs, q, k, v, probabilities where it makes them, its output and the dropout after it."""
    shape, numbers = spec.model, spec.numbers
    c, tokens = numbers.compute, spec.batch * queries
    roles = ("q", "k", "v", "qkv")
    stream = numbers.residual if numbers.autocast or spec.residual_bytes else c
    if cross:
        _linear_input(
            spec,
            kept,
            "attention_input",
            tokens * shape.hidden,
            ("cross_q",),
            source=stream,
            split=False,
        )
        if (
            numbers.autocast and spec.lora_rank is None
        ):  # each layer casts the encoder's output for itself
            kept.add("attention_input", 2 * spec.batch * keys * shape.hidden * c, split=False)
    else:
        _linear_input(
            spec, kept, "attention_input", tokens * shape.hidden, roles, source=stream, split=False
        )
    output = tokens * shape.query_width
    path = (
        "sdpa"
        if cross and spec.attention == "sdpa" and not spec.attention_chance
        else spec.attention_path
    )
    if path == "sdpa":
        kept.add("qkv", _qkv_values(spec, tokens, spec.batch * keys) * c)
        kept.add("attention_output", output * c + 4 * tokens * shape.heads)
        if shape.style.partial_rotary and spec.lora_rank is None:
            kept.add("attention_output", output * c)
    else:
        inner = 4.0 if path == "math" else c  # the fall-back computes in fp32
        kept.add("qkv", (output + 2 * spec.batch * keys * shape.query_width) * inner)
        _scores(spec, kept, spec.batch * shape.heads * queries * keys)
        _linear_input(
            spec,
            kept,
            "attention_output",
            output,
            (("cross_" if cross else "") + "o",),
            source=c,
            split=True,
        )
    if shape.style.qk_norm:
        _norm(spec, kept, tokens, shape.query_width + shape.kv_width)
    _mask(spec, kept, tokens * shape.hidden, shape.dropout)


def _qkv_values(spec: TrainingSpec, tokens: int, key_tokens: int) -> float:
    """Fused projections leave one storage that views keep alive; a key-value cache copies k and v out of it."""
    shape = spec.model
    q, kv = tokens * shape.query_width, 2 * key_tokens * shape.kv_width
    caching = (
        spec.use_cache
        and spec.checkpointing == "none"
        and shape.kind_of_head == "lm"
        and not shape.patch
    )
    if not shape.style.fused_qkv:
        return q + kv
    if shape.style.rotary:
        return q + kv if caching else q + kv + q + kv / 2
    return q + kv + (kv if caching else 0)


def _scores(spec: TrainingSpec, kept: Saved, values: float) -> None:
    """Probabilities, and their dropped-out copy with its mask (Korthikanti: 2 + 1 + 2 bytes); in fp32 first where the model asks for it."""
    shape, numbers, math = spec.model, spec.numbers, spec.attention_path == "math"
    c = 4.0 if math else numbers.compute
    # autocast takes softmax in fp32 on CUDA; on the CPU only where a mask in fp32 is added first, as for decoders
    autocast = numbers.autocast and (spec.device == "cuda" or shape.kind_of_head == "lm")
    fp32 = shape.style.softmax_fp32 or autocast or math
    chance = spec.attention_chance
    size = (4.0 if fp32 else c) + (c if chance > 0 or (fp32 and c < 4) else 0.0)
    if spec.checkpointing != "selective":
        kept.add("attention_scores", values * size)
        # rotary's fp32 tables leave queries in fp32 under autocast, and dropout works in their dtype
        wide = numbers.autocast and shape.style.rotary and spec.device == "cpu"
        _mask(spec, kept, values * (2 if wide else 1), chance, split=True)


def _feed_forward(spec: TrainingSpec, kept: Saved, tokens: int) -> None:
    shape, numbers = spec.model, spec.numbers
    c, f = spec.linear_output_bytes, tokens * shape.ffn_width
    stream = numbers.residual if numbers.autocast or spec.residual_bytes else c
    if shape.experts:
        # the router's copies, and each token's values for each of its experts: gathered input, hidden, weighted output
        kept.add("router", tokens * shape.experts * 8, split=False)
        f, chosen = f * shape.experts_per_token, tokens * shape.experts_per_token * shape.hidden
        # grouped products are not on autocast's list: experts work in the stream's dtype (transformers/integrations/moe.py)
        inner, trained = (
            stream if numbers.autocast and spec.quantised is None else c,
            spec.lora_rank is None,
        )
        if trained:
            kept.add("ffn_input", tokens * shape.hidden * c, split=False)
        # frozen experts keep neither what they gather nor the input of their last product
        kept.add("experts", chosen * inner * (1 + trained))
        kept.add("ffn", f * inner * ((3 if shape.is_gated else 1) + trained))
    else:
        # Phi and such read one norm's output for attention and feed-forward: one storage, counted with attention
        shared = shape.style.norms == 1 and not numbers.autocast and spec.lora_rank is None
        if not shared:
            _linear_input(
                spec,
                kept,
                "ffn_input",
                tokens * shape.hidden,
                ("gate", "up"),
                source=stream,
                split=False,
            )
        kept.add("ffn", f * (_activation_bytes(spec) + (2 * c if shape.is_gated else 0)))
        if (
            shape.activation_name == "relu"
        ):  # keeps its output, which is also the next layer's input
            kept.add("ffn", f * c)
            if shape.dropout > 0 and shape.style.norm == "t5norm":
                kept.add("ffn", f * c)
        else:
            _linear_input(spec, kept, "ffn_hidden", f, ("down",), source=c, split=True)
        if shape.style.norm == "t5norm":
            _mask(spec, kept, f, shape.dropout, split=True)
    _mask(spec, kept, tokens * shape.hidden, shape.dropout)


def _activation_bytes(spec: TrainingSpec) -> float:
    """Bytes a value kept by the activation function beside its output. CUDA's autocast takes `pow` in fp32, and what follows with it
    (aten/src/ATen/autocast_mode.h, the fp32 list); the CPU's does not."""
    c, name = spec.linear_output_bytes, spec.model.activation_name
    if name in ("gelu_new", "gelu_fast") and spec.numbers.autocast and spec.device == "cuda":
        return 4.0 * 3 + c
    return _BEFORE_OUTPUT.get(name, 1) * c


def cast_bytes(spec: TrainingSpec) -> float:
    """Copies of weights in another dtype that backward needs: all linear layers' under autocast (the adapters' alone where the rest is
    frozen in that dtype), fp8's two copies."""
    if not spec.numbers.casts:
        return 0.0
    if spec.lora_rank is not None:
        return spec.numbers.casts * sum(
            spec.lora_rank * (m.rows + m.cols) * m.copies for m in spec.lora_matrices()
        )
    linear = sum(
        m.copies * m.rows * m.cols for m in matrices(spec.model) if m.kind in ("linear", "head")
    )
    shape = spec.model
    if shape.kind_of_head in ("lm", "mlm") and shape.is_tied:
        linear += shape.vocab * shape.hidden
    return spec.numbers.casts * linear
