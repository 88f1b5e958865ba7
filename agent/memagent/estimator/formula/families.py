"""Structure of each model family's blocks, as far as it decides parameters and saved tensors.

Read from the modules of transformers 5 (`modeling_<family>.py`).
tests/agent/estimator/formula/test_shapes.py builds each on the meta device and compares counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from memagent.errors import EstimateError

NormKind = Literal["layernorm", "rmsnorm", "t5norm", "gemmanorm"]
HeadKind = Literal["lm", "mlm", "classifier", "none"]


@dataclass(frozen=True)
class Family:
    """One architecture.

    - norms: norms in a layer; 1 if attention and feed-forward share it.
    - parallel: attention and feed-forward both read the layer's input, so norms save one storage.
    - grouped_queries: its modules read `num_key_value_heads` and `head_dim`, which others ignore.
    - bias: all linear layers of a block have biases; `qkv_bias`: only q, k and v do.
    - partial_rotary: rotary by `torch.cat`. Queries come out head-major, so attention's output is
      copied before its projection.
    - softmax_fp32: eager attention takes its softmax in fp32 and casts back; both are saved.
    - logits_upcast: transformers' own loss converts logits to fp32 first (`loss/loss_utils.py`,
      `ForCausalLMLoss`).
    - plain_loss: before transformers 4.50 its loss took the logits as they were.
    - output_dropout: attention's output goes through dropout.
    - pooler: the bare encoder has one.
    - logits_bias: a buffer is added to the logits, which makes them fp32 under autocast.
    - mask_buffer: the model holds a causal mask of all its positions, a byte each.
    - names: the linear layers' names in transformers, which LoRA's `target_modules` match.
    """

    norm: NormKind
    head: HeadKind = "lm"
    norms: int = 2
    post_norm: bool = False
    parallel: bool = False
    fused_qkv: bool = False
    rotary: bool = False
    grouped_queries: bool = False
    bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    head_bias: bool = False
    embedding_norm: bool = False
    final_norm: bool = True
    partial_rotary: bool = False
    softmax_fp32: bool = False
    gated: bool = False
    tied: bool = False
    activation: str = "gelu"
    logits_upcast: bool = True
    plain_loss: bool = False
    output_dropout: bool = True
    pooler: bool = True
    logits_bias: bool = False
    mask_buffer: bool = False
    names: dict[str, str] = field(default_factory=dict)


_LLAMA = {
    "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj",
    "gate": "gate_proj", "up": "up_proj", "down": "down_proj",
}  # fmt: skip
_BERT = {"q": "query", "k": "key", "v": "value", "o": "dense", "up": "dense", "down": "dense"}
_GPT2 = {"qkv": "c_attn", "o": "c_proj", "up": "c_fc", "down": "c_proj"}
_NEOX = {"qkv": "query_key_value", "o": "dense", "up": "dense_h_to_4h", "down": "dense_4h_to_h"}
_PHI = {**_LLAMA, "o": "dense", "up": "fc1", "down": "fc2"}
_PHI3 = {
    "qkv": "qkv_proj", "o": "o_proj",
    "gate": "gate_up_proj", "up": "gate_up_proj", "down": "down_proj",
}  # fmt: skip
_T5 = {
    "q": "q", "k": "k", "v": "v", "o": "o",
    "gate": "wi_0", "up": "wi_1", "ungated_up": "wi", "down": "wo",
}  # fmt: skip
_OPT = {**_LLAMA, "o": "out_proj", "up": "fc1", "down": "fc2"}
_DISTILBERT = {
    "q": "q_lin",
    "k": "k_lin",
    "v": "v_lin",
    "o": "out_lin",
    "up": "lin1",
    "down": "lin2",
}
_STARCODER2 = {**_LLAMA, "up": "c_fc", "down": "c_proj"}
_LLAMA_BLOCK = Family(
    "rmsnorm",
    rotary=True,
    grouped_queries=True,
    softmax_fp32=True,
    gated=True,
    activation="silu",
    names=_LLAMA,
)
_GPT2_BLOCK = Family(
    "layernorm",
    fused_qkv=True,
    bias=True,
    tied=True,
    activation="gelu_new",
    plain_loss=True,
    names=_GPT2,
)
_BERT_BLOCK = Family(
    "layernorm",
    head="mlm",
    post_norm=True,
    bias=True,
    tied=True,
    embedding_norm=True,
    final_norm=False,
    logits_upcast=False,
    names=_BERT,
)
_BART_BLOCK = Family(
    "layernorm",
    post_norm=True,
    bias=True,
    tied=True,
    embedding_norm=True,
    final_norm=False,
    logits_upcast=False,
    logits_bias=True,
    names=_OPT,
)

FAMILIES = {
    "llama": _LLAMA_BLOCK,
    "qwen2": replace(_LLAMA_BLOCK, qkv_bias=True),
    "qwen3": replace(_LLAMA_BLOCK, qk_norm=True),
    "phi3": replace(_LLAMA_BLOCK, partial_rotary=True, fused_qkv=True, names=_PHI3),
    "gemma": replace(_LLAMA_BLOCK, norm="gemmanorm", tied=True, activation="gelu_pytorch_tanh"),
    "gpt2": _GPT2_BLOCK,
    "gpt_bigcode": replace(
        _GPT2_BLOCK, softmax_fp32=True, activation="gelu_pytorch_tanh", mask_buffer=True
    ),
    "gpt_neox": Family(
        "layernorm", fused_qkv=True, bias=True, rotary=True, partial_rotary=True, parallel=True,
        softmax_fp32=True, plain_loss=True, names=_NEOX,
    ),
    "phi": Family(
        "layernorm", norms=1, bias=True, rotary=True, partial_rotary=True, softmax_fp32=True,
        grouped_queries=True, head_bias=True, activation="gelu_new", names=_PHI,
    ),
    "opt": Family(
        "layernorm", bias=True, tied=True, softmax_fp32=True, activation="relu", plain_loss=True,
        names=_OPT,
    ),
    "starcoder2": Family(
        "layernorm", bias=True, rotary=True, grouped_queries=True, tied=True, softmax_fp32=True,
        activation="gelu_pytorch_tanh", names=_STARCODER2,
    ),
    "bert": _BERT_BLOCK,
    "distilbert": replace(_BERT_BLOCK, output_dropout=False, pooler=False, names=_DISTILBERT),
    "bart": _BART_BLOCK,
    "mbart": replace(_BART_BLOCK, post_norm=False, final_norm=True),
    "pegasus": replace(_BART_BLOCK, post_norm=False, final_norm=True, embedding_norm=False),
    "t5": Family("t5norm", tied=True, activation="relu", logits_upcast=False, names=_T5),
    "vit": Family(
        "layernorm", head="classifier", softmax_fp32=True, bias=True, logits_upcast=False,
        names=_BERT,
    ),
}  # fmt: skip
"""Families by the word used in `ModelShape.family`."""

ALIASES = {
    "mistral": "llama",
    "mixtral": "llama",
    "code_llama": "llama",
    "granite": "llama",
    "yi": "llama",
    "roberta": "bert",
    "xlm-roberta": "bert",
    "starcoder": "gpt_bigcode",
    "mt5": "t5",
    "deit": "vit",
}
"""Other `model_type`s of Hugging Face that are built like one of the families."""


def family_named(name: str) -> Family:
    """Return the family. Raises EstimateError that lists the known ones."""
    try:
        return FAMILIES[ALIASES.get(name, name)]
    except KeyError:
        choices = ", ".join(sorted({*FAMILIES, *ALIASES}))
        raise EstimateError(
            f"model family {name!r} is not known: use one of {choices}, or trace the model"
        ) from None
