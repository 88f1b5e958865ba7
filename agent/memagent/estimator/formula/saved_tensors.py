"""Tensors that autograd saves for backward in one layer of a transformer.

1. Each operation saves what torch's derivatives.yaml lists. A linear layer and GELU save their
   input, LayerNorm its input and two statistics. SDPA saves q, k, v, its output and a log-sum-exp
   (O(s)), eager attention its probabilities (O(s^2)).
2. A tensor that two operations save is one storage and counts once: attention's output is also its
   projection's input.
3. Under autocast the stream between layers is fp32, and every linear layer saves its own cast copy.
4. A frozen linear layer doesn't save its input, unless it is in int8 (bitsandbytes'
   `MatMul8bitLt`); a LoRA adapter does, in its own dtype.
5. Dropout saves a mask: one byte a value on CUDA, the values' dtype on the CPU.

With a plain GELU, dropout and two bytes a value this adds up to the 34 s b h + 5 a s^2 b of
Korthikanti et al. 2022 (arXiv 2205.05198, equation 1). Beyond that paper it covers gating, grouped
heads, RMSNorm's fp32 copies, LoRA and details of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from memagent.estimator.formula.shapes import Matrix, ModelShape, matrices
from memagent.estimator.formula.spec import ALL_LINEAR, TrainingSpec

_ACTIVATION_INPUTS = {
    "silu": 1,
    "swish": 1,
    "gelu": 1,
    "gelu_pytorch_tanh": 1,
    "gelu_fast": 4,
    "gelu_new": 4,
    "quick_gelu": 2,
    "relu": 0,
}
"""Tensors that an activation function saves besides its output. `gelu_new` of transformers is
written in plain operations, and saves x, x / 2, tanh and 1 + tanh; ReLU saves only its output."""


@dataclass
class SavedTensors:
    """Bytes by name: tensor parallelism divides `split`, not `whole` (norms, dropout)."""

    split: dict[str, float] = field(default_factory=dict)
    whole: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, size: float, *, split: bool = True) -> None:
        target = self.split if split else self.whole
        target[name] = target.get(name, 0.0) + size

    def on_rank(self, tensor: int, *, sequence: bool) -> float:
        """Return the bytes on one tensor-parallel rank (Korthikanti et al., equations 2 and 4)."""
        whole = sum(self.whole.values())
        return sum(self.split.values()) / tensor + whole / (tensor if sequence else 1)

    @property
    def total(self) -> float:
        return self.on_rank(1, sequence=False)


def layer_saved(spec: TrainingSpec, *, decoder: bool = False) -> SavedTensors:
    """Return one layer of the (first) stack, or a decoder layer with its cross-attention."""
    saved = SavedTensors()
    length = spec.target_positions if decoder else spec.positions
    tokens = spec.batch * length
    _norm(spec, saved, tokens)
    _attention(spec, saved, length, length)
    if decoder:
        _norm(spec, saved, tokens)
        _attention(spec, saved, length, spec.positions, cross=True)
    if spec.model.style.parallel:
        saved.add("norms", 8 * tokens, split=False)
    elif spec.model.style.norms > 1:
        _norm(spec, saved, tokens)
    _feed_forward(spec, saved, tokens)
    return saved


def edges_saved(spec: TrainingSpec) -> SavedTensors:
    """Return tensors outside of the layers: the batch, embeddings, last norm, the head's input.

    The loss counts the logits.
    """
    shape, sizes, saved = spec.model, spec.dtype_bytes, SavedTensors()
    tokens, hidden = spec.tokens, shape.hidden
    saved.add("batch", 3 * 8 * tokens if not shape.patch else 8 * spec.batch, split=False)
    if shape.patch:
        pixels = spec.batch * shape.channels * shape.image**2
        # under autocast the batch is in fp32, and the projection saves a copy
        original = sizes.residual if sizes.autocast else 0.0
        saved.add("pixels", pixels * (original + sizes.compute), split=False)
    _dropout_mask(spec, saved, tokens * hidden, shape.dropout)
    if shape.style.embedding_norm:
        _norm(spec, saved, tokens)
    if shape.style.final_norm:
        _norm(spec, saved, tokens)
    if shape.decoder_layers:
        targets = spec.batch * spec.target_positions
        for _ in range(shape.style.embedding_norm + shape.style.final_norm):
            _norm(spec, saved, targets)
        is_t5 = shape.style.norm == "t5norm"  # which drops out behind its last norms, too
        outputs = 2 * targets + tokens if is_t5 else targets
        _dropout_mask(spec, saved, outputs * hidden, shape.dropout)
        if shape.style.norm == "t5norm" and spec.attention_path != "eager":
            positions = 2 * shape.heads * spec.positions**2
            saved.add("relative_positions", positions * sizes.compute)
        if spec.lora_rank is None and not sizes.autocast:
            saved.add("encoder_output", tokens * hidden * sizes.compute, split=False)
    if spec.lora_rank is None and shape.head_kind in ("lm", "mlm"):
        values = spec.output_tokens * hidden
        if shape.head_kind == "mlm":
            transform = values * (2 * sizes.compute + sizes.residual)
            saved.add("head_transform", transform, split=False)
        saved.add("head_input", values * sizes.compute, split=False)
    elif shape.head_kind == "mlm":
        # a frozen transform saves what GELU and the norm read, and peft's all-linear adapts it
        adapted = spec.lora_bytes if ALL_LINEAR in spec.lora_targets else 0.0
        values = spec.output_tokens * hidden
        saved.add("head_transform", values * (2 * sizes.compute + adapted), split=False)
    return saved


def _norm(spec: TrainingSpec, saved: SavedTensors, tokens: int, width: int | None = None) -> None:
    """Add the input and the intermediate results; the next linear layer saves the output."""
    kind, trained = spec.model.style.norm, spec.lora_rank is None
    values = tokens * (width or spec.model.hidden)
    residual = spec.dtype_bytes.residual
    if kind == "layernorm" or spec.fused_norms:
        size = 4.0 if _is_normed_in_fp32(spec) else residual
        saved.add("norms", values * size + 8 * tokens, split=False)
        return
    # the squares need fp32: a copy, unless the stream is fp32 already
    size = 4.0 + (residual if kind == "t5norm" and residual < 4 else 0.0)
    normalised = 4.0 if kind == "gemmanorm" else residual
    value_bytes = size + (normalised if trained else 0.0)
    saved.add("norms", values * value_bytes + 4 * tokens, split=False)


def _dropout_mask(
    spec: TrainingSpec,
    saved: SavedTensors,
    values: float,
    probability: float,
    *,
    split: bool = False,
) -> None:
    if probability > 0:
        size = 1 if spec.device == "cuda" else spec.dtype_bytes.compute
        saved.add("dropout", values * size, split=split)


def _linear_input(
    spec: TrainingSpec,
    saved: SavedTensors,
    name: str,
    values: float,
    roles: tuple[str, ...],
    *,
    source_bytes: float,
    split: bool = False,
    is_saved: bool = False,
) -> None:
    """Add the input of `source_bytes` a value that linear layers of these roles save.

    is_saved: another operation saves it, so that only copies count.
    """
    sizes, lora = spec.dtype_bytes, spec.lora_rank is not None
    layers = [
        matrix
        for matrix in matrices(spec.model)
        if matrix.role in roles and matrix.layered and (not lora or spec.is_target(matrix))
    ]
    size = spec.lora_bytes if lora and not sizes.autocast else sizes.saved_input
    has_own = bool(layers) and size == source_bytes
    if spec.quantised == "int8" and not is_saved and not has_own:
        saved.add(name, values * source_bytes)
    if not layers:
        return
    # each layer casts its input for itself; gate and up may be one
    copies = (
        len({layer.name for layer in layers})
        if size != source_bytes and sizes.stored is None
        else 1
    )
    # rehearsals of FSDP hold as much as if it were saved twice: the reason isn't known
    if not is_saved or size != source_bytes or spec.parallel.zero == 3:
        saved.add(name, values * size * copies, split=split)
    if lora:
        _adapters(spec, saved, values, layers, size)


def unhooked_bytes(spec: TrainingSpec) -> float:
    """Return the inputs that a layer holds in spite of checkpointing.

    bitsandbytes' int8 product keeps them as attributes of its context, where the hooks of
    checkpointing don't see them (`MatMul8bitLt`: bitsandbytes/autograd/_functions.py).
    """
    if spec.quantised != "int8":
        return 0.0
    shape = spec.model
    streams = 1 if shape.style.norms == 1 else 2
    values = streams * shape.hidden * _stream_bytes(spec)
    values += shape.query_width * spec.dtype_bytes.compute
    return spec.tokens * (values + shape.ffn_width * spec.linear_output_bytes)


def _adapters(
    spec: TrainingSpec, saved: SavedTensors, values: float, targets: list[Matrix], size: float
) -> None:
    """Add the values between an adapter's two matrices, and its dropout's mask and copy."""
    rank = spec.lora_rank or 0
    for matrix in targets:
        saved.add("lora", values / matrix.cols * rank * size)
        if spec.lora_dropout > 0:
            saved.add("lora", values * (1 + size))


def _is_normed_in_fp32(spec: TrainingSpec) -> bool:
    """Return True if LayerNorm casts a two-byte stream, and keeps the copy.

    CUDA's autocast runs it in fp32 (aten/src/ATen/autocast_mode.h); the CPU's doesn't.
    """
    is_layernorm = spec.model.style.norm == "layernorm" and not spec.fused_norms
    return is_layernorm and spec.dtype_bytes.autocast and spec.device == "cuda"


def _stream_bytes(spec: TrainingSpec) -> float:
    """Return bytes a value of what a layer's first matrices read."""
    sizes = spec.dtype_bytes
    if _is_normed_in_fp32(spec):
        return 4.0
    return sizes.residual if sizes.autocast or spec.residual_bytes else sizes.compute


def _attention(
    spec: TrainingSpec, saved: SavedTensors, queries: int, keys: int, *, cross: bool = False
) -> None:
    """Add one layer's attention: inputs, q, k, v, probabilities, output and dropout."""
    shape, sizes = spec.model, spec.dtype_bytes
    compute, tokens = sizes.compute, spec.batch * queries
    prefix, path = "cross_" if cross else "", spec.attention_path
    roles = ("cross_q",) if cross else ("q", "k", "v", "qkv")
    inputs, stream = tokens * shape.hidden, _stream_bytes(spec)
    _linear_input(spec, saved, "attention_input", inputs, roles, source_bytes=stream)
    if cross and (sizes.autocast or spec.lora_rank is not None):
        # k and v each cast the encoder's output for themselves
        encoder, of_encoder = spec.batch * keys * shape.hidden, ("cross_k", "cross_v")
        _linear_input(spec, saved, "attention_input", encoder, of_encoder, source_bytes=stream)
    if cross and spec.attention == "sdpa" and not spec.attention_dropout:
        path = "sdpa"  # cross-attention has no learned bias
    output = tokens * shape.query_width
    if path == "sdpa":
        saved.add("qkv", _qkv_values(spec, tokens, spec.batch * keys) * compute)
        if shape.relative_buckets and not cross:  # each layer's own copy, of one sample
            saved.add("relative_positions", shape.heads * queries * keys * compute)
        saved.add("attention_output", output * compute + 4 * tokens * shape.heads)
        if spec.lora_rank is not None:
            roles = (prefix + "o",)
            _linear_input(
                spec, saved, "attention_output", output, roles, source_bytes=compute, is_saved=True
            )
        elif shape.style.partial_rotary and not (compute == 4 and spec.device == "cuda"):
            # flash attention's output is as head-major as its queries; the efficient kernel's isn't
            saved.add("attention_output", output * compute)
    else:
        inner = 4.0 if path == "math" else compute  # the fall-back computes in fp32
        saved.add("qkv", (output + 2 * spec.batch * keys * shape.query_width) * inner)
        _scores(spec, saved, spec.batch * shape.heads * queries * keys)
        _linear_input(
            spec,
            saved,
            "attention_output",
            output,
            (prefix + "o",),
            source_bytes=compute,
            split=True,
        )
    if shape.style.qk_norm:
        _norm(spec, saved, tokens, shape.query_width + shape.kv_width)
    if shape.style.output_dropout:
        _dropout_mask(spec, saved, tokens * shape.hidden, shape.dropout)


def _qkv_values(spec: TrainingSpec, tokens: int, key_tokens: int) -> float:
    """Count q, k and v: views keep a fused projection alive; a cache copies k and v."""
    shape = spec.model
    q, kv = tokens * shape.query_width, 2 * key_tokens * shape.kv_width
    is_decoder = shape.head_kind == "lm" and not shape.patch
    caching = spec.has_cache and spec.checkpointing == "none" and is_decoder
    if not shape.style.fused_qkv:
        return q + kv
    if shape.style.rotary:
        return q + kv if caching else q + kv + q + kv / 2
    return q + kv + (kv if caching else 0)


def _scores(spec: TrainingSpec, saved: SavedTensors, values: float) -> None:
    """Add probabilities, and their dropped-out copy with its mask (2 + 1 + 2 bytes)."""
    if spec.checkpointing == "selective":
        return
    shape, sizes, is_math = spec.model, spec.dtype_bytes, spec.attention_path == "math"
    compute = 4.0 if is_math else sizes.compute
    # autocast takes softmax in fp32 on CUDA; on the CPU only after an fp32 mask, as in decoders
    autocast = sizes.autocast and (spec.device == "cuda" or shape.head_kind == "lm")
    fp32 = shape.style.softmax_fp32 or autocast or is_math
    has_copy = spec.attention_dropout > 0 or (fp32 and compute < 4)
    size = (4.0 if fp32 else compute) + (compute if has_copy else 0.0)
    saved.add("attention_scores", values * size)
    # rotary's fp32 tables leave queries in fp32 under autocast, and dropout works in their dtype
    is_wide = sizes.autocast and shape.style.rotary and spec.device == "cpu"
    mask = values * (2 if is_wide else 1)
    _dropout_mask(spec, saved, mask, spec.attention_dropout, split=True)


def _feed_forward(spec: TrainingSpec, saved: SavedTensors, tokens: int) -> None:
    shape = spec.model
    if shape.experts:
        _experts(spec, saved, tokens)
    else:
        _dense(spec, saved, tokens)
    _dropout_mask(spec, saved, tokens * shape.hidden, shape.dropout)


def _experts(spec: TrainingSpec, saved: SavedTensors, tokens: int) -> None:
    """Add the router's copies, and per chosen expert: gathered input, hidden, weighted output."""
    shape, sizes, trained = spec.model, spec.dtype_bytes, spec.lora_rank is None
    compute, chosen = spec.linear_output_bytes, tokens * shape.experts_per_token
    saved.add("router", tokens * shape.experts * 8, split=False)
    # Grouped products are not on autocast's list, so experts work in the stream's dtype: see
    # transformers/integrations/moe.py.
    is_stream = sizes.autocast and spec.quantised is None
    inner = _stream_bytes(spec) if is_stream else compute
    if trained:
        saved.add("ffn_input", tokens * shape.hidden * compute, split=False)
    # frozen experts save neither their gathered input nor that of their last product
    saved.add("experts", chosen * shape.hidden * inner * (1 + trained))
    saved.add("ffn", chosen * shape.ffn_width * inner * ((3 if shape.is_gated else 1) + trained))


def _dense(spec: TrainingSpec, saved: SavedTensors, tokens: int) -> None:
    shape, sizes, compute = spec.model, spec.dtype_bytes, spec.linear_output_bytes
    inputs, values = tokens * shape.hidden, tokens * shape.ffn_width
    is_t5 = shape.style.norm == "t5norm"
    # Phi's attention and feed-forward read one norm's output: one storage, counted with attention
    shared = shape.style.norms == 1 and not sizes.autocast and spec.lora_rank is None
    if not shared:
        stream = _stream_bytes(spec)
        _linear_input(
            spec,
            saved,
            "ffn_input",
            inputs,
            ("gate", "up"),
            source_bytes=stream,
            is_saved=shape.style.norms == 1,
        )
    saved.add("ffn", values * _activation_bytes(spec))
    if shape.is_gated:
        saved.add("ffn", values * (compute + _activated_bytes(spec)))
    has_dropout = is_t5 and shape.dropout > 0
    if shape.activation_name == "relu":
        saved.add("ffn", values * compute)  # saves its output, often the next layer's input
    if shape.activation_name != "relu" or has_dropout or spec.lora_rank is not None:
        _linear_input(
            spec,
            saved,
            "ffn_hidden",
            values,
            ("down",),
            source_bytes=compute,
            split=True,
            is_saved=shape.activation_name == "relu" and not has_dropout,
        )
    if is_t5:
        _dropout_mask(spec, saved, values, shape.dropout, split=True)


def _activation_bytes(spec: TrainingSpec) -> float:
    """Return bytes a value that the activation function saves besides its output.

    CUDA's autocast takes `pow` in fp32, and what follows with it (aten/src/ATen/autocast_mode.h,
    the fp32 list); the CPU's doesn't.
    """
    compute, name = spec.linear_output_bytes, spec.model.activation_name
    if _is_widened(spec):
        return 4.0 * 3 + compute
    return _ACTIVATION_INPUTS.get(name, 1) * compute


def _activated_bytes(spec: TrainingSpec) -> float:
    return 4.0 if _is_widened(spec) else spec.linear_output_bytes


def _is_widened(spec: TrainingSpec) -> bool:
    """Return True if the activation's result is in fp32, since it is written with `pow`."""
    is_written_out = spec.model.activation_name in ("gelu_new", "gelu_fast")
    return is_written_out and spec.dtype_bytes.autocast and spec.device == "cuda"


def cast_bytes(spec: TrainingSpec, *, head: bool = True) -> float:
    """Return the copies of weights in another dtype that backward needs, without those of the head
    if asked to.

    These are all linear layers' under autocast (only the adapters' if the rest is frozen in that
    dtype, and an fp32 head's), and fp8's two copies.
    """
    casts, shape = spec.dtype_bytes.casts, spec.model
    if not casts:
        return 0.0
    if spec.lora_rank is not None:
        values = sum(spec.lora_rank * (m.rows + m.cols) * m.copies for m in spec.lora_matrices())
        values += _head_values(shape) if head and spec.has_wide_edges else 0
        return casts * values
    values = sum(m.copies * m.rows * m.cols for m in matrices(shape) if m.kind == "linear")
    return casts * (values + (_head_values(shape) if head else 0))


def _head_values(shape: ModelShape) -> int:
    """Count the values of the head's matrices, one of which may be that of the embeddings."""
    tied = shape.vocab * shape.hidden if shape.head_kind in ("lm", "mlm") and shape.is_tied else 0
    return tied + sum(m.copies * m.rows * m.cols for m in matrices(shape) if m.kind == "head")
