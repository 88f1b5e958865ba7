"""Formula from a transformer's shape alone, for the cases that are transformers."""

from __future__ import annotations

from typing import Any

from benchmarks.estimator.estimators import LeftOutError, Prediction, meta, prediction_of
from benchmarks.estimator.workload import Case, Where
from memagent.errors import EstimateError
from memagent.estimator.formula.from_config import from_config
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_training

_OPTIMIZERS = {
    **dict.fromkeys(("adamw", "adamw_single", "adamw_foreach", "adamw_fused"), "adamw"),
    "adamw_8bit": "adamw8bit", "momentum": "momentum", "sgd": "sgd",
    "adafactor": "adafactor",
}  # fmt: skip
_IMPLEMENTATIONS = {"adamw_foreach": "foreach", "adamw_fused": "fused"}
_TARGETS = {
    "gpt2": ("c_attn",),
    "bert": ("query", "value"),
    "llama": ("q_proj", "v_proj"),
    "mixtral": ("q_proj", "v_proj"),
}
_RANK = 8


def predict(case: Case, where: Where, spec: TrainingSpec | None = None) -> Prediction:
    """Estimate `spec`, or what the model's config and the case describe. Raises LeftOutError for
    other models.
    """
    return prediction_of(
        estimate_training(spec or _spec(case, where), context_bytes=where.context_bytes)
    )


def _spec(case: Case, where: Where) -> TrainingSpec:
    workload = meta(case)
    model: Any = workload.model
    try:
        config = model.config.to_dict()
        shape = from_config(config | {"architectures": [type(_bare(model)).__name__]})
    except (AttributeError, EstimateError) as error:
        raise LeftOutError(f"not described by a transformer's shape: {error}") from error
    inputs = workload.batch()[0]
    batch, *rest = next(iter(inputs.values())).shape
    options: dict[str, Any] = (
        {"lora_rank": _RANK, "lora_targets": _TARGETS[case.family]} if case.lora else {}
    )
    return TrainingSpec(
        shape,
        batch=batch,
        sequence=None if shape.patch else rest[0],
        precision="bf16" if case.dtype == "bfloat16" else "amp" if case.autocast else "fp32",
        optimizer=_OPTIMIZERS[case.optimizer],
        implementation=_IMPLEMENTATIONS.get(case.optimizer, "single"),
        checkpointing="none" if case.checkpointing == "none" else "full",
        attention=case.attention,
        accumulation=case.accumulation,
        keeps_output=case.holds_output,
        use_cache=bool(getattr(model.config, "use_cache", False)),
        device="cuda" if where.kind == "cuda" else "cpu",
        gpu="h200" if where.capability == (9, 0) else None,
        **options,
    )


def _bare(model: Any) -> Any:
    """Return the transformers model inside peft's."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
