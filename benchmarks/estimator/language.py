"""Families of the zoo that are `transformers` models, built from configs with random weights.
Nothing is downloaded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.estimator.families import Batch, Built, Tensors, own_loss
from benchmarks.estimator.workload import Case

_CHECKPOINTING = {"reentrant": True, "non_reentrant": False}


def _gpt2(case: Case) -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    width, layers, heads, words = (768, 12, 12, 50257) if case.size == "large" else (64, 2, 4, 512)
    config = GPT2Config(
        n_embd=width, n_layer=layers, n_head=heads, vocab_size=words, **_common(case)
    )
    return _finished(case, GPT2LMHeadModel(config), targets=["c_attn"], words=words)


def _bert(case: Case) -> Built:
    from transformers import BertConfig, BertForMaskedLM

    width, layers, heads, words = (768, 12, 12, 30522) if case.size == "large" else (64, 2, 4, 512)
    config = BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width, vocab_size=words,
        **_common(case),
    )  # fmt: skip
    return _finished(
        case, BertForMaskedLM(config), targets=["query", "value"], words=words, length=512
    )


def _llama(case: Case) -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    return _finished(
        case, LlamaForCausalLM(LlamaConfig(**_llama_shape(case))), targets=["q_proj", "v_proj"]
    )


def _mixtral(case: Case) -> Built:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**_llama_shape(case), num_local_experts=4, num_experts_per_tok=2)
    return _finished(case, MixtralForCausalLM(config), targets=["q_proj", "v_proj"])


def _llama_shape(case: Case) -> dict[str, Any]:
    width, layers, heads = (2048, 12, 16) if case.size == "large" else (64, 2, 4)
    return {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads // 2,
        "intermediate_size": 11 * width // 4, "vocab_size": _words(case), **_common(case),
    }  # fmt: skip


def _t5(case: Case) -> Built:
    from transformers import T5Config, T5ForConditionalGeneration

    width, layers, heads = (768, 12, 12) if case.size == "large" else (64, 2, 4)
    common = {name: value for name, value in _common(case).items() if name != "attn_implementation"}
    config = T5Config(
        d_model=width, d_kv=width // heads, d_ff=4 * width, num_layers=layers, num_heads=heads, vocab_size=_words(case),
        decoder_start_token_id=0, pad_token_id=0, **common,
    )  # fmt: skip
    return _finished(case, T5ForConditionalGeneration(config), targets=["q", "v"], length=512)


def _mamba(case: Case) -> Built:
    from transformers import MambaConfig, MambaForCausalLM

    width, layers = (768, 6) if case.size == "large" else (64, 2)
    config = MambaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        state_size=8,
        vocab_size=_words(case),
        use_cache=False,
    )
    return _finished(case, MambaForCausalLM(config), targets=["in_proj"], length=256)


def _vit(case: Case) -> Built:
    from transformers import ViTConfig, ViTForImageClassification

    width, layers, heads, size, patch, images = (
        (768, 12, 12, 224, 16, 64) if case.size == "large" else (64, 2, 4, 64, 8, 4)
    )
    config = ViTConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width, image_size=size,
        patch_size=patch, num_labels=100, attn_implementation=case.attention,
    )  # fmt: skip

    def batch() -> tuple[Tensors, Tensors]:
        return {
            "pixel_values": torch.randn(images, 3, size, size),
            "labels": torch.randint(100, (images,)),
        }, {}

    return prepared(case, ViTForImageClassification(config), ["query", "value"]), batch, own_loss


def _common(case: Case) -> dict[str, Any]:
    return {
        "use_cache": False,
        "attn_implementation": case.attention,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def _words(case: Case) -> int:
    return 32000 if case.size == "large" else 512


def _finished(
    case: Case,
    model: nn.Module,
    *,
    targets: list[str],
    words: int | None = None,
    length: int | None = None,
) -> Built:
    rows, tokens = (8, length or 1024) if case.size == "large" else (4, 64)
    return prepared(case, model, targets), text(rows, tokens, words or _words(case)), own_loss


def text(rows: int, length: int, words: int) -> Batch:
    """Return tokens that are their own labels, as for causal language models."""

    def batch() -> tuple[Tensors, Tensors]:
        ids = torch.randint(words, (rows, length))
        return {"input_ids": ids, "labels": ids.clone()}, {}

    return batch


def prepared(case: Case, model: Any, targets: list[str], *, rank: int = 8) -> nn.Module:
    """Enable checkpointing before LoRA, as users of `transformers.Trainer` do."""
    if case.checkpointing != "none":
        arguments = {"use_reentrant": _CHECKPOINTING[case.checkpointing]}
        enable = (
            getattr(model, "activation_checkpointing_enable", None)
            or model.gradient_checkpointing_enable
        )
        enable(arguments)  # its name since transformers 5.23, and the one before
    if not case.lora:
        return model
    from peft import LoraConfig, get_peft_model

    if case.checkpointing == "reentrant":
        model.enable_input_require_grads()
    is_conv1d = "c_attn" in targets  # GPT-2's, whose weights are transposed
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", FutureWarning
        )  # peft asks transformers by a name of before 5.23
        return get_peft_model(
            model, LoraConfig(r=rank, target_modules=targets, fan_in_fan_out=is_conv1d)
        )


FAMILIES: dict[str, Callable[[Case], Built]] = {
    "gpt2": _gpt2, "bert": _bert, "llama": _llama, "mixtral": _mixtral, "t5": _t5, "mamba": _mamba, "vit": _vit,
}  # fmt: skip
