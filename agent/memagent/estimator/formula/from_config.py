"""Shapes from Hugging Face config.json files, without transformers.

Field names differ by family (`n_embd` or `hidden_size`): `_FIELDS` lists them in the order of
lookup.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from memagent.errors import EstimateError, UnknownModelError
from memagent.estimator.formula.families import ALIASES, FAMILIES, HeadKind
from memagent.estimator.formula.shapes import ModelShape

Config = Mapping[str, Any]

_FIELDS = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads"),
    "vocab": ("vocab_size",),
    "ffn": ("intermediate_size", "d_ff", "encoder_ffn_dim"),
}
HEAD_CLASSES: dict[HeadKind, tuple[str, ...]] = {
    "mlm": ("ForMaskedLM", "ForPreTraining"),
    "lm": ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"),
    "classifier": ("ForSequenceClassification", "ForImageClassification"),
    "none": ("Model",),
}
"""Endings of class names by head, in the order of lookup."""
_HEAD_NAMES: dict[HeadKind, str] = {
    "mlm": "A head for masked tokens",
    "lm": "A head for the next token",
    "classifier": "A classifier's head",
    "none": "A model without a head",
}


def read_config(config: str | Path | Config) -> dict[str, Any]:
    """Return the content of a config.json, given as its path, its folder, or its content.

    Raises EstimateError if it isn't one.
    """
    if isinstance(config, Mapping):
        content: Any = dict(config)
    else:
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise EstimateError(f"{path} does not exist") from None
        except (OSError, ValueError) as error:
            raise EstimateError(f"{path} cannot be read as a config.json: {error}") from error
        if not isinstance(content, dict):
            raise EstimateError(f"{path} holds no object: is it the config.json of a model?")
    if not content.get("model_type"):
        raise EstimateError(
            "config has no model_type: is this the config.json of a Hugging Face model?"
        )
    classes = content.get("architectures") or []
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise EstimateError(
            f"config has architectures {classes!r:.100}: write a list of names of classes"
        )
    return cast(dict[str, Any], content)


def from_config(config: Config, *, head: HeadKind | None = None, name: str = "") -> ModelShape:
    """Return the shape that a config.json describes; `head` overrides that of its `architectures`.

    Raises EstimateError that names an unknown `model_type` or a missing number.
    """
    kind = str(read_config(config)["model_type"])
    family = ALIASES.get(kind, kind)
    if family not in FAMILIES:
        choices = ", ".join(sorted({*FAMILIES, *ALIASES}))
        raise UnknownModelError(
            f"model_type {kind!r} is not known to the formula ({choices}): trace it, which needs "
            "torch and transformers: pip install torch transformers"
        )
    try:
        return _shape(config, family, head, name)
    except (TypeError, ValueError, OverflowError) as error:
        raise EstimateError(
            f"the config of a {kind} holds another value than a number: {error}"
        ) from error


def _shape(config: Config, family: str, head: HeadKind | None, name: str) -> ModelShape:
    numbers = {
        field: next((int(config[name]) for name in names if config.get(name) is not None), None)
        for field, names in _FIELDS.items()
    }
    for field in ("layers", "hidden", "heads"):
        if numbers[field] is None:
            names = ", ".join(_FIELDS[field])
            raise EstimateError(f"config has none of {names}: the model's {field} are required")
    labels = config.get("id2label")
    common: dict[str, Any] = {
        **numbers,
        "vocab": numbers["vocab"] or 0,
        "family": family,
        "name": name or str(config.get("_name_or_path") or config["model_type"]),
        "head": head or _head(config, family),
        "labels": len(labels) if labels else int(config.get("num_labels", 2)),
        "tied_embeddings": config.get("tie_word_embeddings"),
        **(_grouped_queries(config) if FAMILIES[family].grouped_queries else {}),
        "activation": config.get("hidden_act") or config.get("activation_function"),
        "use_cache": config.get("use_cache") is not False,
    }
    return ModelShape(**{**common, **_READERS.get(family, _read_llama)(config)})


def _grouped_queries(config: Config) -> dict[str, Any]:
    return {"kv_heads": config.get("num_key_value_heads"), "head_dim": config.get("head_dim")}


def _head(config: Config, family: str) -> HeadKind:
    for architecture in config.get("architectures") or ():
        for head, endings in HEAD_CLASSES.items():
            if str(architecture).endswith(endings):
                return head
    return FAMILIES[family].head


def head_choice(config: Config, shape: ModelShape) -> tuple[str, ...]:
    """Return that the head is a choice, nothing if the config names a class that has one."""
    names = config.get("architectures") or ()
    endings = tuple(ending for group in HEAD_CLASSES.values() for ending in group)
    if any(str(name).endswith(endings) for name in names):
        return ()
    return (f"{_HEAD_NAMES[shape.head_kind]} was chosen, since the config names no class.",)


def _read_llama(config: Config) -> dict[str, Any]:
    experts = int(config.get("num_local_experts") or 0)
    # Qwen2's q, k and v always have biases and its `o` never has: the config doesn't matter
    is_qwen2 = config.get("model_type") == "qwen2"
    return {
        "qkv_bias": None if is_qwen2 else config.get("attention_bias"),
        "mlp_bias": config.get("mlp_bias"),
        "experts": experts,
        "experts_per_token": int(config.get("num_experts_per_tok") or 0) if experts else 0,
        "attention_dropout": config.get("attention_dropout"),
    }


def _read_gpt2(config: Config) -> dict[str, Any]:
    is_bigcode = config.get("model_type") in ("gpt_bigcode", "starcoder")
    width = config.get("n_inner")
    return {
        "ffn": None if width is None else int(width),
        "positions": int(config.get("n_positions", 1024)),
        "kv_heads": 1 if is_bigcode and config.get("multi_query", True) else None,
        "dropout": float(config.get("resid_pdrop", 0.1)),
        "attention_dropout": float(config.get("attn_pdrop", 0.1)),
    }


def _read_bert(config: Config) -> dict[str, Any]:
    return {
        "positions": int(config.get("max_position_embeddings", 512)),
        "token_types": int(config.get("type_vocab_size", 2)),
        "dropout": float(config.get("hidden_dropout_prob", 0.1)),
        "attention_dropout": float(config.get("attention_probs_dropout_prob", 0.1)),
    }


def _read_opt(config: Config) -> dict[str, Any]:
    projected = config.get("word_embed_proj_dim") or config["hidden_size"]
    if projected != config["hidden_size"] or not config.get("do_layer_norm_before", True):
        raise UnknownModelError(
            "an opt with narrow embeddings, or norms behind its layers, is not known to the "
            "formula: trace it, which needs torch and transformers: pip install torch transformers"
        )
    return {
        "ffn": int(config.get("ffn_dim", 3072)),
        "positions": int(config.get("max_position_embeddings", 2048)) + _POSITIONS_BEFORE,
        "spare_positions": _POSITIONS_BEFORE,
        "dropout": float(config.get("dropout", 0.1)),
        "attention_dropout": float(config.get("attention_dropout", 0.0)),
    }


def _read_starcoder2(config: Config) -> dict[str, Any]:
    return {
        "dropout": float(config.get("residual_dropout", 0.0)),
        "attention_dropout": float(config.get("attention_dropout", 0.0)),
    }


def _read_distilbert(config: Config) -> dict[str, Any]:
    return {
        "ffn": int(config.get("hidden_dim", 3072)),
        "positions": int(config.get("max_position_embeddings", 512)),
        "activation": config.get("activation"),
        "dropout": float(config.get("dropout", 0.1)),
        "attention_dropout": float(config.get("attention_dropout", 0.1)),
    }


def _read_bart(config: Config) -> dict[str, Any]:
    offset = 0 if config["model_type"] == "pegasus" else _POSITIONS_BEFORE
    same = (("ffn_dim", 4 * int(config["d_model"])), ("attention_heads", None))
    for name, default in same:
        widths = {config.get(f"{stack}_{name}", default) for stack in ("encoder", "decoder")}
        if len(widths) > 1:
            raise UnknownModelError(
                f"a {config['model_type']} whose stacks differ in {name} is not known to the "
                "formula: trace it, which needs torch and transformers: pip install torch "
                "transformers"
            )
    return {
        "decoder_layers": int(config["decoder_layers"]),
        "positions": int(config.get("max_position_embeddings", 1024)) + offset,
        "spare_positions": offset,
        "dropout": float(config.get("dropout", 0.1)),
        "attention_dropout": float(config.get("attention_dropout", 0.0)),
    }


def _read_phi(config: Config) -> dict[str, Any]:
    return {
        "dropout": float(config.get("resid_pdrop", 0.0)),
        "attention_dropout": config.get("attention_dropout"),
    }


def _read_neox(config: Config) -> dict[str, Any]:
    return {
        "dropout": float(config.get("hidden_dropout", 0.0)),
        "attention_dropout": float(config.get("attention_dropout", 0.0)),
    }


def _read_t5(config: Config) -> dict[str, Any]:
    projection = str(config.get("feed_forward_proj", "relu"))
    gated = projection.startswith("gated-")
    activation = projection.removeprefix("gated-")
    return {
        # transformers 5 ties them whatever the config says (configuration_t5.py)
        "tied_embeddings": True,
        "decoder_layers": int(config.get("num_decoder_layers") or config["num_layers"]),
        "head_dim": int(config["d_kv"]),
        "relative_buckets": int(config.get("relative_attention_num_buckets", 32)),
        "gated": gated,
        # `gated-gelu` means gelu_new in T5Config, for backwards compatibility
        "activation": "gelu_new" if gated and activation == "gelu" else activation,
        "dropout": float(config.get("dropout_rate", 0.1)),
    }


def _read_vit(config: Config) -> dict[str, Any]:
    return {
        "image": int(config.get("image_size", 224)),
        "patch": int(config.get("patch_size", 16)),
        "channels": int(config.get("num_channels", 3)),
        "qkv_bias": config.get("qkv_bias"),
        "vocab": 0,
        "dropout": float(config.get("hidden_dropout_prob", 0.0)),
        "attention_dropout": float(config.get("attention_probs_dropout_prob", 0.0)),
    }


_POSITIONS_BEFORE = 2
"""Rows of a table of positions before the first token's, in OPT, BART and RoBERTa."""
_READERS: dict[str, Callable[[Config], dict[str, Any]]] = {
    "phi3": _read_phi,
    "gpt2": _read_gpt2,
    "gpt_bigcode": _read_gpt2,
    "gpt_neox": _read_neox,
    "phi": _read_phi,
    "opt": _read_opt,
    "starcoder2": _read_starcoder2,
    "bert": _read_bert,
    "distilbert": _read_distilbert,
    "bart": _read_bart,
    "mbart": _read_bart,
    "pegasus": _read_bart,
    "t5": _read_t5,
    "vit": _read_vit,
}
"""Readers of what only a family's configs have; the others are like Llama's."""
