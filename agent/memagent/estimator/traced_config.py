"""A Hugging Face config.json as a question to the tracer: the class of `transformers` itself is traced, with weights that
have no values.

Nothing is asked of the hub and no weight is loaded. What the formula knows of a config is in `configs`; here the user's
own version of `transformers` says what its model does, and `peft` what adapters add.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from memagent.errors import EstimateError
from memagent.estimator.request import EstimateRequest

Spec = tuple[tuple[int, ...], str]

_PRECISIONS: dict[str, tuple[str, Literal["bf16", "fp16"] | None]] = {
    "fp32": ("float32", None),
    "amp": ("float32", "bf16"),
    "fp16-amp": ("float32", "fp16"),
    "bf16": ("bfloat16", None),
    "fp16": ("float16", None),
}
"""By name as in `memagent estimate --dtype`: the weights' dtype, and what autocast computes in."""

_DEFAULT_TOKENS = 2048
_TASKS = (
    "ForCausalLM",
    "ForMaskedLM",
    "ForSeq2SeqLM",
    "ForImageClassification",
    "ForSequenceClassification",
)
"""Where a config names no class: the first of transformers' Auto classes that takes it."""


@dataclass(frozen=True)
class ConfiguredModel:
    """Builds the model that a config describes; called in the tracing process, which lends it tensors without data.

    `attention` is transformers' name of an implementation, None its own choice. `checkpointing` recomputes each layer.
    `lora_rank` freezes it and adds adapters to `lora_targets`: names, "all-linear", or, for None, what peft takes for the
    family.
    """

    config: Mapping[str, Any]
    dtype: str = "float32"
    attention: str | None = None
    checkpointing: Literal["reentrant", "non_reentrant"] | None = None
    lora_rank: int | None = None
    lora_targets: Sequence[str] | str | None = None

    def __call__(self) -> Any:
        """A torch.nn.Module in training mode. Raises EstimateError where the installed transformers has no such model."""
        import torch

        kind, config = model_class(self.config)
        config.use_cache = False
        if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = config.pad_token_id = (
                0  # T5's are in generation_config.json
            )
        chosen = {} if self.attention is None else {"attn_implementation": self.attention}
        model = kind._from_config(config, dtype=getattr(torch, self.dtype), **chosen)
        model.train()
        if self.checkpointing is not None:
            keywords = {"use_reentrant": self.checkpointing == "reentrant"}
            enable = (
                getattr(model, "activation_checkpointing_enable", None)
                or model.gradient_checkpointing_enable
            )
            enable(keywords)  # its name since transformers 5.23, and the one before
        return model if self.lora_rank is None else self._adapted(model)

    def _adapted(self, model: Any) -> Any:
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError:
            raise EstimateError(
                "LoRA is traced through peft, which is not installed: pip install peft"
            ) from None
        if self.checkpointing == "reentrant":
            model.enable_input_require_grads()
        given = self.lora_targets
        targets = given if given is None or isinstance(given, str) else list(given)
        try:
            return get_peft_model(
                model, LoraConfig(r=self.lora_rank or 8, target_modules=targets)
            ).train()
        except ValueError as error:
            raise EstimateError(
                f"peft can't add adapters to {targets or 'its default layers'}: {error}"
            ) from error


def question_for_config(
    config: str | Path | Mapping[str, Any],
    *,
    batch: int = 1,
    sequence: int | None = None,
    precision: str = "amp",
    optimizer: Any = "adamw",
    attention: Literal["sdpa", "eager"] | None = None,
    checkpointing: Literal["reentrant", "non_reentrant"] | None = None,
    accumulate: int = 1,
    lora_rank: int | None = None,
    lora_targets: Sequence[str] | str | None = None,
    **device: Any,
) -> EstimateRequest:
    """The question that traces a training step of the model of a config.json (path, its folder, or its content).

    batch: samples in one forward. sequence: tokens a sample, by default what the config's learned positions allow, else
    2048. precision: fp32, amp (bf16 autocast), fp16-amp (with a GradScaler), bf16 or fp16 (weights and all). attention:
    None is transformers' own choice. checkpointing: recompute each layer. lora_rank: train adapters only, on
    lora_targets (names, "all-linear", None: peft's). `device` are `EstimateRequest`'s own fields: device, allocator,
    limit_bytes, workspace_bytes, context_bytes, timeout_s.

    Raises EstimateError where transformers is not installed or has no such model, and for a config or a precision that makes no sense.
    """
    content = read_config(config)
    if precision not in _PRECISIONS:
        raise EstimateError(
            f"precision {precision!r} can't be traced: use one of {', '.join(_PRECISIONS)}"
        )
    dtype, autocast = _PRECISIONS[precision]
    model = ConfiguredModel(content, dtype, attention, checkpointing, lora_rank, lora_targets)
    return EstimateRequest(
        model=model,
        inputs=inputs_for(content, batch=batch, sequence=sequence, dtype=dtype),
        optimizer=optimizer,
        autocast=autocast,
        scaler=precision == "fp16-amp",
        accumulate=accumulate,
        **device,
    )


def read_config(config: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """The content of a config.json, given as its path, its folder, or as it is. Raises EstimateError for a file that is none."""
    if isinstance(config, Mapping):
        content: Any = config
    else:
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EstimateError(f"{path} can't be read as a config.json: {error}") from error
    if not isinstance(content, Mapping) or "model_type" not in content:
        raise EstimateError(
            "config has no model_type: is this the config.json of a Hugging Face model?"
        )
    return content


def model_class(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """The class in transformers that the config's `architectures` name, else one with a head that its type has, and its config object."""
    try:
        import transformers
    except ImportError:
        raise EstimateError(
            "a config.json is traced with transformers, which is not installed"
        ) from None
    kind = str(config["model_type"])
    try:
        made = transformers.AutoConfig.for_model(**config)
    except (ValueError, KeyError) as error:
        raise EstimateError(
            f"transformers {transformers.__version__} has no model_type {kind!r}"
        ) from error
    for name in config.get("architectures") or ():
        found = getattr(transformers, str(name), None)
        if found is not None:
            return found, made
    for task in _TASKS:
        mapping: Mapping[type, Any] = getattr(transformers, f"AutoModel{task}")._model_mapping
        if type(made) in mapping:
            found = mapping[type(made)]
            return found[0] if isinstance(found, tuple) else found, made
    raise EstimateError(
        f"transformers has no model with a loss for {kind!r}: name one in the config's architectures"
    )


def inputs_for(
    config: Mapping[str, Any], *, batch: int, sequence: int | None, dtype: str = "float32"
) -> dict[str, Spec]:
    """What the model is called with in training, as shapes: tokens or pixels, and its labels.

    Raises EstimateError for a model that is called with something else.
    """
    kind, made = model_class(config)
    if kind.main_input_name == "pixel_values":
        size, channels = getattr(made, "image_size", 224), getattr(made, "num_channels", 3)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        given: dict[str, Spec] = {"pixel_values": ((batch, channels, height, width), dtype)}
        tokens = 0
    elif kind.main_input_name == "input_ids":
        tokens = sequence or _learned_positions(made) or _DEFAULT_TOKENS
        given = {"input_ids": ((batch, tokens), "int64")}
    else:
        raise EstimateError(
            f"{kind.__name__} takes {kind.main_input_name}: trace it by path.py:factory with --input"
        )
    for ending, labels in _LABELS.items():
        if kind.__name__.endswith(ending):
            given |= labels(batch, tokens)
    return given


def _learned_positions(config: Any) -> int | None:
    """Tokens that learned positions allow; rotary ones, whose limit says nothing of trainings, are left out."""
    if getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None):
        return None
    return getattr(config, "n_positions", None) or getattr(config, "max_position_embeddings", None)


def _of_each_token(batch: int, tokens: int) -> dict[str, Spec]:
    return {"labels": ((batch, tokens), "int64")}


def _of_each_sample(batch: int, _: int) -> dict[str, Spec]:
    return {"labels": ((batch,), "int64")}


def _of_spans(batch: int, _: int) -> dict[str, Spec]:
    return {"start_positions": ((batch,), "int64"), "end_positions": ((batch,), "int64")}


_LABELS: dict[str, Callable[[int, int], dict[str, Spec]]] = {
    "ForCausalLM": _of_each_token, "LMHeadModel": _of_each_token, "ForMaskedLM": _of_each_token, "ForPreTraining": _of_each_token,
    "ForConditionalGeneration": _of_each_token, "ForTokenClassification": _of_each_token, "ForSequenceClassification": _of_each_sample,
    "ForImageClassification": _of_each_sample, "ForQuestionAnswering": _of_spans,
}  # fmt: skip
