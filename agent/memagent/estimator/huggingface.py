"""Hugging Face config.json files as shapes, without the hub and without transformers: only the numbers are read.

Names differ by family (`n_embd` or `hidden_size`): `_NAMES` lists them in the order in which they are looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memagent.errors import EstimateError
from memagent.estimator.formula.families import ALIASES, FAMILIES, Head
from memagent.estimator.formula.shapes import ModelShape

_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "vocab": ("vocab_size",),
    "ffn": ("intermediate_size", "n_inner", "d_ff"),
}
_HEADS: tuple[tuple[str, Head], ...] = (
    ("ForMaskedLM", "mlm"), ("ForPreTraining", "mlm"), ("ForCausalLM", "lm"), ("LMHeadModel", "lm"), ("ForConditionalGeneration", "lm"),
    ("ForSequenceClassification", "classifier"), ("ForImageClassification", "classifier"), ("Model", "none"),
)  # fmt: skip


def from_config(
    config: Mapping[str, Any], *, head: Head | None = None, name: str = ""
) -> ModelShape:
    """The shape that a config.json describes. `head` overrides what its `architectures` say.

    Raises EstimateError for a `model_type` that is not known and for numbers that are missing, by name.
    """
    kind = str(config.get("model_type", ""))
    if not kind:
        raise EstimateError(
            "config has no model_type: is this the config.json of a Hugging Face model?"
        )
    if ALIASES.get(kind, kind) not in FAMILIES:
        known = ", ".join(sorted({*FAMILIES, *ALIASES}))
        raise EstimateError(
            f"model_type {kind!r} is not known: it is one of {known}, or trace the model instead"
        )
    family = ALIASES.get(kind, kind)
    common: dict[str, Any] = {field: _first(config, names) for field, names in _NAMES.items()}
    common["vocab"] = common["vocab"] or 0
    for field in ("layers", "hidden", "heads"):
        if common[field] is None:
            raise EstimateError(
                f"config has none of {', '.join(_NAMES[field])}: the model's {field} are needed"
            )
    common |= {
        "family": family,
        "name": name or str(config.get("_name_or_path") or kind),
        "head": head or _head(config, family),
        "labels": _labels(config),
        "tied_embeddings": config.get("tie_word_embeddings", _TIED_UNLESS_SAID.get(family)),
        "kv_heads": config.get("num_key_value_heads"),
        "head_dim": config.get("head_dim"),
        "activation": config.get("hidden_act") or config.get("activation_function"),
    }
    return ModelShape(**{**common, **_READERS[family](config)})


_TIED_UNLESS_SAID = {
    "gpt2": True,
    "gpt_bigcode": True,
    "bert": True,
    "t5": True,
    "gemma": True,
    "vit": False,
}


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((int(config[name]) for name in names if config.get(name) is not None), None)


def _head(config: Mapping[str, Any], family: str) -> Head:
    for architecture in config.get("architectures") or ():
        for ending, head in _HEADS:
            if str(architecture).endswith(ending):
                return head
    return FAMILIES[family].head


def _labels(config: Mapping[str, Any]) -> int:
    return len(config["id2label"]) if config.get("id2label") else int(config.get("num_labels", 2))


def _llama(config: Mapping[str, Any]) -> dict[str, Any]:
    experts = int(config.get("num_local_experts") or 0)
    # Qwen2's q, k and v always have biases and its `o` never has: that is the family's, not the config's
    said = None if config.get("model_type") in ("qwen2",) else config.get("attention_bias")
    return {
        "qkv_bias": said,
        "mlp_bias": config.get("mlp_bias"),
        "experts": experts,
        "experts_per_token": int(config.get("num_experts_per_tok") or 0) if experts else 0,
        "attention_dropout": config.get("attention_dropout"),
    }


def _gpt2(config: Mapping[str, Any]) -> dict[str, Any]:
    multi_query = config.get("model_type") in ("gpt_bigcode", "starcoder") and config.get(
        "multi_query", True
    )
    return {
        "positions": int(config.get("n_positions", 1024)),
        "kv_heads": 1 if multi_query else None,
        "dropout": float(config.get("resid_pdrop", 0.1)),
        "attention_dropout": float(config.get("attn_pdrop", 0.1)),
    }


def _bert(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "positions": int(config.get("max_position_embeddings", 512)),
        "token_types": int(config.get("type_vocab_size", 2)),
        "dropout": float(config.get("hidden_dropout_prob", 0.1)),
        "attention_dropout": float(config.get("attention_probs_dropout_prob", 0.1)),
    }


def _phi(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "dropout": float(config.get("resid_pdrop", 0.0)),
        "attention_dropout": config.get("attention_dropout"),
    }


def _neox(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "dropout": float(config.get("hidden_dropout", 0.0)),
        "attention_dropout": float(config.get("attention_dropout", 0.0)),
    }


def _t5(config: Mapping[str, Any]) -> dict[str, Any]:
    projection = str(config.get("feed_forward_proj", "relu"))
    gated = projection.startswith("gated-")
    activation = projection.removeprefix("gated-")
    return {
        "tied_embeddings": True,  # transformers 5 ties them whatever the config says (configuration_t5.py)
        "decoder_layers": int(config.get("num_decoder_layers") or config["num_layers"]),
        "head_dim": int(config["d_kv"]),
        "relative_buckets": int(config.get("relative_attention_num_buckets", 32)),
        "gated": gated,
        # `gated-gelu` means gelu_new in T5Config, for backwards compatibility
        "activation": "gelu_new" if gated and activation == "gelu" else activation,
        "dropout": float(config.get("dropout_rate", 0.1)),
    }


def _vit(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "image": int(config.get("image_size", 224)),
        "patch": int(config.get("patch_size", 16)),
        "channels": int(config.get("num_channels", 3)),
        "qkv_bias": config.get("qkv_bias"),
        "vocab": 0,
        "dropout": float(config.get("hidden_dropout_prob", 0.0)),
        "attention_dropout": float(config.get("attention_probs_dropout_prob", 0.0)),
    }


_READERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "llama": _llama, "qwen2": _llama, "qwen3": _llama, "phi3": _phi, "gemma": _llama, "gpt2": _gpt2, "gpt_bigcode": _gpt2,
    "gpt_neox": _neox, "phi": _phi, "bert": _bert, "t5": _t5, "vit": _vit,
}  # fmt: skip
