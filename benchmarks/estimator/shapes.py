"""The formula from a transformer's shape alone, for those cases that are one."""

from __future__ import annotations

from typing import Any

from benchmarks.estimator.estimators import LeftOutError, Prediction, meta
from benchmarks.estimator.workload import Case

_OPTIMIZERS = {
    **dict.fromkeys(("adamw", "adamw_single", "adamw_foreach", "adamw_fused"), "adamw"),
    "adamw_8bit": "adamw8bit", "momentum": "momentum", "sgd": "sgd",
    "adafactor": "adafactor",
}  # fmt: skip
_FAMILIES = ("gpt2", "bert", "llama", "santacoder", "mistral7b")


def predict(case: Case) -> Prediction:
    """Raises LeftOutError for what a `TransformerShape` can't say."""
    family = case.family.partition(" x ")[0]
    if family not in _FAMILIES:
        raise LeftOutError("not described by a transformer's shape")
    if case.lora:
        raise LeftOutError("LoRA is not in the shape formula")
    from memagent.estimator.formula import TransformerShape, estimate_transformer

    workload = meta(case)
    config: Any = workload.model.config
    batch, sequence = workload.batch()[0]["input_ids"].shape
    shape = TransformerShape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=_kv_heads(config),
        ffn=getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None),
        vocab=config.vocab_size,
        sequence=sequence,
        batch=batch,
        gated=family in ("llama", "mistral7b"),
        tied_embeddings=bool(config.tie_word_embeddings),
    )
    answer = estimate_transformer(
        shape,
        precision="bf16" if case.dtype == "bfloat16" else "fp32",
        optimizer=_OPTIMIZERS[case.optimizer],
        checkpointing="none" if case.checkpointing == "none" else "full",
        attention=case.attention,
    )
    return Prediction(answer.peak_allocated_bytes, intervals=answer.intervals)


def _kv_heads(config: Any) -> int:
    if getattr(config, "multi_query", False):
        return 1
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
