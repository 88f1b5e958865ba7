"""How the blocks of each model family are built, as far as it decides parameters and what autograd saves.

Read off the modules of transformers 5 (`modeling_<family>.py`); `tests/agent/estimator/test_shapes.py` builds each on the meta device
and compares counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from memagent.errors import EstimateError

Norm = Literal["layernorm", "rmsnorm", "t5norm", "gemmanorm"]
Head = Literal["lm", "mlm", "classifier", "none"]


@dataclass(frozen=True)
class Family:
    """One architecture. `names` are those of its linear layers in transformers: what LoRA's `target_modules` are matched with."""

    norm: Norm
    head: Head = "lm"
    norms: int = 2
    """Norms a layer; 1 where attention and feed-forward share it."""
    post_norm: bool = False
    parallel: bool = False
    """Attention and feed-forward both read the layer's input: their norms keep one storage."""
    fused_qkv: bool = False
    rotary: bool = False
    bias: bool = False
    """Biases on all linear layers of a block; `qkv_bias` alone where only these have them."""
    qkv_bias: bool = False
    qk_norm: bool = False
    head_bias: bool = False
    embedding_norm: bool = False
    final_norm: bool = True
    partial_rotary: bool = False
    """Rotary by `torch.cat`: queries come out head-major, so attention's output is copied before its projection."""
    softmax_fp32: bool = False
    """Whether eager attention takes its softmax in fp32 and casts back: both are kept."""
    gated: bool = False
    tied: bool = False
    activation: str = "gelu"
    logits_upcast: bool = True
    """Whether transformers' own loss turns logits into fp32 first (`loss/loss_utils.py`, `ForCausalLMLoss`)."""
    names: dict[str, str] = field(default_factory=dict)


_LLAMA = {
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "o": "o_proj",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
}
_BERT = {"q": "query", "k": "key", "v": "value", "o": "dense", "up": "dense", "down": "dense"}
_GPT2 = {"qkv": "c_attn", "o": "c_proj", "up": "c_fc", "down": "c_proj"}
_NEOX = {"qkv": "query_key_value", "o": "dense", "up": "dense_h_to_4h", "down": "dense_4h_to_h"}
_PHI = {**_LLAMA, "o": "dense", "up": "fc1", "down": "fc2"}
_T5 = {
    "q": "q",
    "k": "k",
    "v": "v",
    "o": "o",
    "gate": "wi_0",
    "up": "wi_1",
    "ungated_up": "wi",
    "down": "wo",
}

FAMILIES = {
    "llama": Family("rmsnorm", rotary=True, softmax_fp32=True, gated=True, activation="silu", names=_LLAMA),
    "qwen2": Family("rmsnorm", rotary=True, softmax_fp32=True, gated=True, activation="silu", qkv_bias=True, names=_LLAMA),
    "qwen3": Family("rmsnorm", rotary=True, softmax_fp32=True, gated=True, activation="silu", qk_norm=True, names=_LLAMA),
    "phi3": Family(
        "rmsnorm", rotary=True, partial_rotary=True, softmax_fp32=True, gated=True, activation="silu", fused_qkv=True,
        names={"qkv": "qkv_proj", "o": "o_proj", "gate": "gate_up_proj", "up": "gate_up_proj", "down": "down_proj"},
    ),
    "gemma": Family("gemmanorm", rotary=True, softmax_fp32=True, gated=True, tied=True, activation="gelu_pytorch_tanh", names=_LLAMA),
    "gpt2": Family("layernorm", fused_qkv=True, bias=True, tied=True, activation="gelu_new", names=_GPT2),
    "gpt_bigcode": Family(
        "layernorm", fused_qkv=True, softmax_fp32=True, bias=True, tied=True, activation="gelu_pytorch_tanh", names=_GPT2,
    ),
    "gpt_neox": Family(
        "layernorm", fused_qkv=True, bias=True, rotary=True, partial_rotary=True, parallel=True, softmax_fp32=True, names=_NEOX,
    ),
    "phi": Family("layernorm", norms=1, bias=True, rotary=True, partial_rotary=True, softmax_fp32=True, head_bias=True,
    activation="gelu_new", names=_PHI),
    "bert": Family(
        "layernorm", head="mlm", post_norm=True, bias=True, tied=True, embedding_norm=True, final_norm=False,
        logits_upcast=False, names=_BERT,
    ),
    "t5": Family("t5norm", tied=True, activation="relu", logits_upcast=False, names=_T5),
    "vit": Family("layernorm", head="classifier", softmax_fp32=True, bias=True, logits_upcast=False, names=_BERT),
}  # fmt: skip
"""Families by the word used in `ModelShape.family`; `ALIASES` maps other `model_type`s of Hugging Face onto them."""

ALIASES = {
    "mistral": "llama", "mixtral": "llama", "roberta": "bert", "starcoder": "gpt_bigcode", "deit": "vit",
    "code_llama": "llama", "yi": "llama", "xlm-roberta": "bert",
}  # fmt: skip


def family_named(name: str) -> Family:
    """Raises EstimateError that lists the families known."""
    try:
        return FAMILIES[ALIASES.get(name, name)]
    except KeyError:
        known = ", ".join(sorted({*FAMILIES, *ALIASES}))
        raise EstimateError(
            f"model family {name!r} is not known: use one of {known}, or trace the model"
        ) from None
