"""Requests to trace the models that Hugging Face config.json files describe.

`request_for_config` traces the class of the installed transformers on tensors without data; `peft`
adds adapters. Nothing is fetched from the hub, and no weight is loaded.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from memagent.errors import EstimateError, OptionError, UnknownModelError, did_you_mean
from memagent.estimator.config_inputs import inputs_of
from memagent.estimator.formula.from_config import Config, read_config
from memagent.estimator.formula.releases import fills_cache
from memagent.estimator.formula.spec import KbitTraining, Loop, check_kbit_training, check_loop
from memagent.estimator.input_specs import TensorSpec
from memagent.estimator.quantised_model import TRACED_QUANTISATIONS, narrow, prepare, quantise
from memagent.estimator.request import TraceRequest

_PRECISIONS: dict[str, tuple[str, Literal["bf16", "fp16"] | None]] = {
    "fp32": ("float32", None),
    "amp": ("float32", "bf16"),
    "fp16-amp": ("float32", "fp16"),
    "bf16": ("bfloat16", None),
    "bf16-amp": ("bfloat16", "bf16"),
    "fp16": ("float16", None),
}
"""Dtypes of the weights and of autocast, by the names of `memagent estimate --precision`."""
_TASKS = (
    "ForSeq2SeqLM",
    "ForMaskedLM",
    "ForCausalLM",
    "ForImageClassification",
    "ForSequenceClassification",
)
"""The Auto classes of transformers to try if a config names no class. BERT has a causal head, too,
and BART all of the first three: what they were published for comes first."""
_OF_DECODERS = _TASKS[2:]


@dataclass(frozen=True)
class ConfiguredModel:
    """Factory of the model that a config describes; the tracing process calls it.

    - attention: transformers' name of an implementation, None for its own choice.
    - checkpointing: recompute each layer.
    - lora_rank: freeze the model and add adapters to `lora_targets`: names, "all-linear", or None
      for peft's choice for the family.
    - loop: the Trainer since transformers 5 fills no key-value cache; else the config decides.
    - quantised: hold the linear layers as bitsandbytes' "int8", "nf4" or "nf4-double".
      kbit_training: how such a model was prepared, see `TrainingSpec`. has_autocast: TRL
      prepares by it.
    """

    config: Config
    dtype: str = "float32"
    attention: str | None = None
    checkpointing: Literal["reentrant", "non_reentrant"] | None = None
    lora_rank: int | None = None
    lora_targets: Sequence[str] | str | None = None
    quantised: str | None = None
    kbit_training: KbitTraining | None = None
    has_autocast: bool = False
    loop: Loop = "trainer"

    def __call__(self) -> Any:
        """Build the model in training mode.

        Raises EstimateError if the installed transformers has no such model.
        """
        model_class, config = load_class(self.config)
        if not fills_cache(_installed_release(), self.loop):
            config.use_cache = False
        if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
            # T5's are in generation_config.json
            config.pad_token_id = 0
            config.decoder_start_token_id = 0
        has_sdpa = getattr(model_class, "_supports_sdpa", True)
        is_own = self.attention is None or (self.attention == "sdpa" and not has_sdpa)
        options: dict[str, Any] = {} if is_own else {"attn_implementation": self.attention}
        # transformers has imported torch; this module must not, for the formula's users
        options[_dtype_keyword()] = getattr(sys.modules["torch"], self.dtype)
        model = model_class._from_config(config, **options)
        model.train()
        if self.quantised is not None:
            model = quantise(model, self.quantised)
        if self.kbit_training is not None:
            model = prepare(model, has_checkpointing=self.checkpointing is not None)
        if self.checkpointing is not None:
            enable_checkpointing(model, use_reentrant=self.checkpointing == "reentrant")
        model = model if self.lora_rank is None else self._adapted(model)
        if self.kbit_training == "trl" and self.has_autocast:
            narrow(model)
        return model

    def _adapted(self, model: Any) -> Any:
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError:
            raise EstimateError("tracing LoRA needs peft: pip install peft") from None
        if self.checkpointing == "reentrant":
            model.enable_input_require_grads()
        targets = self.lora_targets
        if targets is not None and not isinstance(targets, str):
            targets = list(targets)
            _check_targets(model, targets)
        try:
            adapters = LoraConfig(r=self.lora_rank or 8, target_modules=targets)
            return get_peft_model(model, adapters).train()
        except ValueError as error:
            if targets is None:
                raise OptionError("lora_targets", _missing_targets(model)) from error
            raise EstimateError(f"peft cannot add adapters to {targets}: {error}") from error


def _missing_targets(model: Any) -> str:
    """Say that peft has no default layers for a model, and which layers it has most of."""
    kinds = ("Linear", "Conv2d", "Conv1D")
    names = Counter(
        path.rpartition(".")[2]
        for path, module in model.named_modules()
        if type(module).__name__ in kinds
    )
    layers = ", ".join(name for name, _ in names.most_common(4))
    return (
        f"is missing, and peft has no default for {model.config.model_type}: give some of {layers}"
    )


def _check_targets(model: Any, targets: list[str]) -> None:
    """Raise EstimateError for a name that no layer has: peft leaves it out if others match."""
    paths = [path for path, module in model.named_modules() if hasattr(module, "weight")]
    for target in targets:
        if not any(path == target or path.endswith(f".{target}") for path in paths):
            near = did_you_mean(target, (path.rpartition(".")[2] for path in paths))
            raise OptionError("lora_targets", f"{target} match no layer{near}")


def _dtype_keyword() -> str:
    """Return the name of the dtype's argument, which transformers 4.56 renamed."""
    return "dtype" if _installed_release() >= (4, 56) else "torch_dtype"


def _installed_release() -> tuple[int, int]:
    major, minor = sys.modules["transformers"].__version__.split(".")[:2]
    return int(major), int(minor)


def enable_checkpointing(model: Any, *, use_reentrant: bool) -> bool:
    """Enable the own checkpointing of a model of transformers; return False for another model."""
    # transformers renamed the method in 5.23
    enable = getattr(model, "activation_checkpointing_enable", None)
    enable = enable or getattr(model, "gradient_checkpointing_enable", None)
    if enable is not None:
        enable({"use_reentrant": use_reentrant})
    return enable is not None


@dataclass(frozen=True)
class ConfigRequest(TraceRequest):
    """A `TraceRequest` whose model is a `ConfiguredModel`: its sequence can change too."""

    def resized(self, batch: int, sequence: int | None) -> ConfigRequest:
        model: ConfiguredModel = self.model
        inputs = inputs_for(model.config, batch=batch, sequence=sequence, dtype=model.dtype)
        fallback = None if self.fallback is None else self.fallback.resized(batch, sequence)
        return replace(self, inputs=inputs, sequence=sequence, fallback=fallback)


def request_for_config(
    config: str | Path | Config,
    *,
    batch: int = 1,
    sequence: int | None = None,
    image_size: int | None = None,
    precision: str = "amp",
    optimizer: Any = "adamw",
    attention: Literal["sdpa", "eager"] | None = None,
    checkpointing: Literal["reentrant", "non_reentrant"] | None = None,
    accumulation: int = 1,
    loop: Loop = "trainer",
    lora_rank: int | None = None,
    lora_targets: Sequence[str] | str | None = None,
    quantised: str | None = None,
    kbit_training: KbitTraining | None = None,
    **device: Any,
) -> ConfigRequest:
    """Return the request to trace the model of a config.json (its path, folder or content).

    - batch: samples in one forward. sequence: tokens a sample, by default the config's learned
      positions, else 2048. image_size: height and width of images, by default the config's.
    - precision: fp32, amp (bf16 autocast), fp16-amp (with a GradScaler), bf16 or fp16 (all
      weights), bf16-amp (bf16 autocast over such weights).
    - attention: None is transformers' own choice. checkpointing: recompute each layer.
    - loop: "trainer" is transformers' Trainer; "plain" and "step" as of `memagent.estimate`.
    - lora_rank: train adapters only, on lora_targets (names, "all-linear", None for peft's choice).
    - quantised: "int8", "nf4" or "nf4-double", with lora_rank. kbit_training: "peft" or "trl".
    - device: the fields of `TraceRequest` for the device: device, allocator, limit_bytes,
      workspace_bytes, context_bytes, timeout_s.

    Raises EstimateError if transformers isn't installed or has no such model, and for an invalid
    config or precision.
    """
    content = read_config(config)
    content = content if image_size is None else _with_image_size(content, image_size)
    check_loop(loop)
    if attention == "eager":
        _check_attention(content)
    dtype, autocast = traced_dtypes(precision)
    check_kbit_training(kbit_training, quantised)
    if quantised not in (None, *TRACED_QUANTISATIONS):
        choices = ", ".join(TRACED_QUANTISATIONS)
        raise OptionError("quantised", f"{quantised!r} cannot be traced: use one of {choices}")
    model = ConfiguredModel(
        content,
        dtype,
        attention,
        checkpointing,
        lora_rank,
        lora_targets,
        quantised,
        kbit_training,
        has_autocast=autocast is not None,
        loop=loop,
    )
    model_class, loaded = load_class(content)
    inputs = inputs_of(model_class, loaded, batch=batch, sequence=sequence, dtype=dtype)
    if image_size is not None and "pixel_values" not in inputs:
        name = model_class.__name__
        raise OptionError("image_size", f"is {image_size}: {name} takes no images, so leave it out")
    return ConfigRequest(
        model=model,
        inputs=inputs,
        remarks=_class_choice(content, model_class.__name__),
        optimizer=optimizer,
        autocast=autocast,
        scaler=precision == "fp16-amp",
        accumulation=accumulation,
        loop=loop,
        sequence=sequence,
        **device,
    )


def traced_dtypes(precision: str) -> tuple[str, Literal["bf16", "fp16"] | None]:
    """Return the dtypes of weights and of autocast. Raises OptionError for another precision."""
    if precision not in _PRECISIONS:
        choices = ", ".join(_PRECISIONS)
        raise OptionError("precision", f"{precision!r} cannot be traced: use one of {choices}")
    return _PRECISIONS[precision]


def _with_image_size(config: Config, image_size: int) -> dict[str, Any]:
    """Return the config of a model for images of this height and width."""
    size = {"image_size": image_size}
    # models of pairs have a config for each of their towers
    is_pair = hasattr(load_class(config)[1], "vision_config")
    tower = {"vision_config": {**(config.get("vision_config") or {}), **size}}
    return {**config, **(tower if is_pair else size)}


def _class_choice(config: Config, class_name: str) -> tuple[str, ...]:
    """Return that the class is a choice, nothing if the config names it."""
    named = config.get("architectures") or ()
    if class_name in named:
        return ()
    release = sys.modules["transformers"].__version__
    reason = f"transformers {release} has no {named[0]}" if named else "the config names no class"
    return (f"{class_name} was chosen, since {reason}.",)


def _check_attention(config: Config) -> None:
    """Raise EstimateError if the model has no attention."""
    model_class, loaded = load_class(config)
    keys = str(loaded.to_dict())
    if "_heads" not in keys and "n_head" not in keys:
        raise OptionError("attention", f"is 'eager': {model_class.__name__} has none, leave it out")


def load_class(config: Config) -> tuple[Any, Any]:
    """Return the class of transformers for a config, and its config object.

    It is the class that `architectures` names, else the first of `_TASKS` that the model type has.
    """
    try:
        import transformers
    except ImportError:
        raise UnknownModelError(
            "tracing a config.json needs transformers, which is missing"
        ) from None
    kind = str(config["model_type"])
    try:
        loaded = transformers.AutoConfig.for_model(**config)
    except (ValueError, KeyError) as error:
        raise UnknownModelError(
            f"transformers {transformers.__version__} has no model_type {kind!r}"
        ) from error
    except Exception as error:  # each config class has its own checks
        raise UnknownModelError(f"the config isn't one of a {kind}: {error}") from error
    for name in config.get("architectures") or ():
        model_class = getattr(transformers, str(name), None)
        if model_class is not None:
            return model_class, loaded
    # an encoder's config says is_decoder if it is meant to write text
    for task in _OF_DECODERS if getattr(loaded, "is_decoder", False) else _TASKS:
        mapping: Mapping[type, Any] = getattr(transformers, f"AutoModel{task}")._model_mapping
        if type(loaded) in mapping:
            model_class = mapping[type(loaded)]
            return model_class[0] if isinstance(model_class, tuple) else model_class, loaded
    raise UnknownModelError(
        f"transformers has no model with a loss for {kind!r}: name one in the config's "
        "architectures"
    )


def inputs_for(
    config: Config, *, batch: int, sequence: int | None, dtype: str = "float32"
) -> dict[str, TensorSpec]:
    """Return the training inputs of a config's class as shapes.

    Raises EstimateError for an unknown class, and for inputs that its config doesn't describe.
    """
    model_class, loaded = load_class(config)
    return inputs_of(model_class, loaded, batch=batch, sequence=sequence, dtype=dtype)
