"""The request of `memagent estimate`, built from its options."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memagent.cli.device_options import card_of, context_bytes_of, limit_bytes_of
from memagent.cli.estimate_checks import (
    FORMULA_ONLY,
    check_classifier,
    check_factory,
    check_options,
    flag_of,
    inputs_of,
    is_given,
    names_of,
)
from memagent.errors import EstimateError, SettingError, UnknownModelError
from memagent.estimator.cards import precision_remarks
from memagent.estimator.formula.from_config import from_config, head_choice, read_config
from memagent.estimator.formula.parallel import Parallel
from memagent.estimator.formula.precision import default_precision
from memagent.estimator.formula.presets import (
    PRESETS,
    canonical_name,
    model_config,
    name_choices,
    preset,
)
from memagent.estimator.formula.shapes import ModelShape
from memagent.estimator.formula.spec import USUAL_LOOP, TrainingSpec
from memagent.estimator.huggingface import request_for_config
from memagent.estimator.input_specs import tensor_specs
from memagent.estimator.quantised_model import TRACED_QUANTISATIONS
from memagent.estimator.request import EstimateRequest, FormulaRequest, TraceRequest
from memagent.estimator.vision_models import (
    VisionModel,
    is_classifier_name,
    request_for_classifier,
    vision_model,
)

_FACTORY = re.compile(r"(?P<path>.+\.py):\w+")
_TRACED_PRECISIONS = ("fp32", "amp", "bf16", "bf16-amp", "fp16")


def build_request(arguments: argparse.Namespace) -> EstimateRequest:
    """Return a request by trace if the model and all options can be traced; else by formula."""
    check_options(arguments)
    request = _request(arguments)
    is_factory = _FACTORY.fullmatch(arguments.model) is not None
    precision = arguments.precision if is_factory else _precision(arguments)
    # all families of the formula have attention
    has_attention = isinstance(request, FormulaRequest) or request.fallback is not None
    attention = arguments.attention if has_attention else ""
    lacks = tuple(precision_remarks(card_of(arguments), precision, attention))
    request = replace(request, remarks=(*request.remarks, *lacks))
    if isinstance(request, TraceRequest) and request.fallback is not None:
        fallback = replace(request.fallback, remarks=(*request.fallback.remarks, *lacks))
        request = replace(request, fallback=fallback)
    return request


def _request(arguments: argparse.Namespace) -> EstimateRequest:
    model = arguments.model
    factory = _FACTORY.fullmatch(model)
    if factory is not None:
        return _factory_request(arguments, Path(factory["path"]))
    if model.endswith(".py"):
        raise SettingError(
            f"--model {model} names no function: {model}:FACTORY is one that returns the model"
        )
    if arguments.input:
        raise SettingError(
            "--input is for path.py:factory: a model by name takes --batch, --sequence and "
            "--image-size"
        )
    if arguments.hub:
        config: dict[str, Any] | None = _from_hub(arguments)
    elif _is_config(model):
        config = read_config(model)
    else:
        config = model_config(model)
        is_classifier = config is None or is_classifier_name(model)
        if is_classifier and (vision := vision_model(model)) is not None:
            return _vision_request(arguments, vision)
    if config is None:
        _raise_unknown(model)
    elif not (reason := _untraced_reason(arguments)):
        fallback = _fallback(arguments, config)
        try:
            request = _config_request(arguments, config, fallback)
        except UnknownModelError as error:
            # the installed transformers has no such model, but the formula may know it
            if arguments.method == "trace":
                raise
            reason = str(error)
        else:
            remarks = (*_name_choices(arguments), *request.remarks)
            return replace(request, fallback=fallback, remarks=remarks)
    untraced = "" if arguments.method == "formula" else reason
    by_shape = _formula_request(arguments, config)
    by_shape.spec.check_positions()
    return replace(by_shape, untraced=untraced)


def _raise_unknown(model: str) -> None:
    try:
        preset(model)
    except UnknownModelError as error:
        is_classifier = is_classifier_name(model) and "did you mean" in str(error)
        if not is_classifier or _has_classifiers():
            raise
        raise UnknownModelError(
            f"{error} Image classifiers of torchvision and timm need these libraries."
        ) from None


def _from_hub(arguments: argparse.Namespace) -> dict[str, Any]:
    from memagent.estimator.hub import hub_config

    if _is_config(arguments.model):
        raise SettingError(f"--hub takes a name such as Qwen/Qwen3-8B, not {arguments.model}")
    return hub_config(arguments.model)


def _formula_request(
    arguments: argparse.Namespace, config: dict[str, Any] | None
) -> FormulaRequest:
    model = arguments.model
    remarks = _name_choices(arguments)
    if config is not None and (arguments.hub or _is_config(model)):
        shape = from_config(config, name=model if arguments.hub else _config_name(model))
        remarks = head_choice(config, shape)
    elif (options := _untraced_options(arguments)) and not _is_preset(model):
        raise UnknownModelError(
            f"{model} is not known to the formula, and a trace does not support {options}: leave "
            "it out"
        )
    else:
        shape = preset(model)
    if arguments.image_size is not None:
        shape = shape.resized(arguments.image_size)
    return FormulaRequest(
        _spec(arguments, shape),
        limit_bytes_of(arguments),
        context_bytes_of(arguments),
        remarks=remarks,
    )


def _name_choices(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return what was chosen for a name without its own config.json."""
    model = arguments.model
    if arguments.hub or _is_config(model):
        return ()
    # names of text models may have underscores, too
    has_text = "vocab_size" in (model_config(model) or {})
    if is_classifier_name(model) and not has_text and not _has_classifiers():
        return (
            f"The hub's {canonical_name(model)} was chosen: torchvision and timm spell a name as "
            f"{model}, and aren't installed.",
        )
    return tuple(name_choices(model))


def _has_classifiers() -> bool:
    return bool(find_spec("torchvision") or find_spec("timm"))


def _fallback(arguments: argparse.Namespace, config: dict[str, Any]) -> FormulaRequest | None:
    """Return the step by its shape, None if the formula doesn't know the family.

    Raises EstimateError for an invalid option, before libraries are loaded.
    """
    try:
        request = _formula_request(arguments, config)
    except UnknownModelError:
        return None
    except EstimateError:
        if arguments.method == "trace" or not _is_preset(arguments.model):
            return None  # a trace may know more
        raise
    request.spec.check_positions()
    return request


def _is_preset(model: str) -> bool:
    return not _is_config(model) and canonical_name(model) in PRESETS


def _vision_request(arguments: argparse.Namespace, model: VisionModel) -> TraceRequest:
    """Return a request for a classifier of torchvision or timm."""
    if reason := _untraced_reason(arguments, libraries=("torch",)):
        raise UnknownModelError(f"{arguments.model} is not known to the formula, and {reason}")
    check_classifier(arguments, model.library)
    return request_for_classifier(
        replace(model, pixels=arguments.image_size),
        batch=arguments.batch or 1,
        precision=_precision(arguments),
        optimizer=arguments.optimizer,
        checkpointing="full" if arguments.checkpointing == "full" else None,
        accumulation=arguments.accumulation,
        loop=arguments.loop or "plain",
        **_device_fields(arguments),
    )


def _untraced_reason(
    arguments: argparse.Namespace, libraries: Sequence[str] = ("torch", "transformers")
) -> str:
    """Return why the step isn't traced, "" if it is.

    Raises SettingError if a trace was asked for and doesn't know an option.
    """
    if arguments.method == "formula":
        return "--method formula was asked for"
    untraced = _untraced_options(arguments)
    if untraced and arguments.method == "trace":
        raise SettingError(
            f"tracing {arguments.model} does not support {untraced}: leave it out, or use "
            "--method formula"
        )
    if untraced:
        return f"a trace does not support {untraced}"
    libraries = (*libraries, "bitsandbytes") if arguments.quantised else libraries
    missing = [name for name in libraries if find_spec(name) is None]
    if missing and arguments.method is None:
        return f"not installed: {' and '.join(missing)}"
    return ""


def _untraced_options(arguments: argparse.Namespace) -> str:
    """Return the options whose values a trace doesn't know, separated by commas."""
    names = {name for name in FORMULA_ONLY if is_given(arguments, name)}
    if _precision(arguments) not in _TRACED_PRECISIONS:
        names.add("precision")
    if arguments.checkpointing == "selective":
        names.add("checkpointing")
    if arguments.attention == "math":
        names.add("attention")
    if arguments.quantised not in (None, *TRACED_QUANTISATIONS):
        names.add("quantised")
    if "8bit" in arguments.optimizer or arguments.optimizer in ("paged_adamw", "lion"):
        names.add("optimizer")
    return ", ".join(flag_of(name) for name in sorted(names))


def _config_request(
    arguments: argparse.Namespace, config: dict[str, Any], fallback: FormulaRequest | None
) -> TraceRequest:
    return request_for_config(
        config,
        batch=arguments.batch or 1,
        sequence=arguments.sequence,
        image_size=arguments.image_size,
        precision=_precision(arguments),
        optimizer=arguments.optimizer,
        attention=arguments.attention,
        checkpointing="non_reentrant" if arguments.checkpointing == "full" else None,
        accumulation=arguments.accumulation,
        loop=arguments.loop or USUAL_LOOP,
        lora_rank=arguments.lora_rank,
        lora_targets=_traced_targets(arguments, fallback),
        quantised=arguments.quantised,
        kbit_training=arguments.kbit_training,
        **_device_fields(arguments),
    )


def _factory_request(arguments: argparse.Namespace, path: Path) -> TraceRequest:
    if not path.is_file():
        raise SettingError(
            f"{path} does not exist: --model path.py:factory names a file and a function in it"
        )
    if not arguments.input:
        raise SettingError(
            f"the arguments of {arguments.model} are missing: give --input, such as "
            "--input 8x1024:int64"
        )
    check_factory(arguments)
    autocast = {"amp": "bf16", "bf16": "bf16", "fp16": "fp16"}
    return TraceRequest(
        model=arguments.model,
        inputs=inputs_of(arguments.input),
        optimizer=arguments.optimizer,
        autocast=autocast.get(arguments.precision),  # type: ignore[arg-type]  # one of its literals
        checkpointing="full" if arguments.checkpointing == "full" else None,
        accumulation=arguments.accumulation,
        loop=arguments.loop or "plain",
        **_device_fields(arguments),
    )


def _device_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    from memagent.estimator.api import device_fields

    card = card_of(arguments)
    limit = None if card else limit_bytes_of(arguments)
    fields = device_fields(gpu=card, limit_bytes=limit, context_bytes=context_bytes_of(arguments))
    return {**fields, "timeout_s": arguments.timeout}


def _spec(arguments: argparse.Namespace, shape: ModelShape) -> TrainingSpec:
    adapters: dict[str, Any] = {}
    if arguments.lora_rank is not None:
        adapters = {
            "lora_rank": arguments.lora_rank,
            "lora_targets": _lora_targets(arguments, shape),
            "quantised": arguments.quantised,
            "kbit_training": arguments.kbit_training,
        }
    return TrainingSpec(
        model=shape,
        batch=1 if arguments.batch is None else arguments.batch,
        sequence=arguments.sequence,
        precision=_precision(arguments),
        optimizer=arguments.optimizer,
        implementation=arguments.implementation,
        checkpointing=arguments.checkpointing,
        checkpoint_every=arguments.checkpoint_every,
        attention=arguments.attention,
        loss=arguments.loss,
        transformers=arguments.transformers,
        accumulation=arguments.accumulation,
        loop=arguments.loop or USUAL_LOOP,
        fsdp_wrap=arguments.fsdp_wrap,
        parallel=Parallel(
            data=arguments.ranks,
            zero=arguments.zero,
            tensor=arguments.tensor,
            sequence=arguments.sequence_parallel,
            pipeline=arguments.pipeline,
        ),
        offload_optimizer=arguments.offload != "none",
        offload_parameters=arguments.offload == "parameters",
        gpu=card_of(arguments),
        **adapters,
    )


def _precision(arguments: argparse.Namespace) -> str:
    usual = default_precision(
        lora_rank=arguments.lora_rank, zero=arguments.zero, kbit_training=arguments.kbit_training
    )
    return usual if arguments.precision is None else str(arguments.precision)


def _lora_targets(arguments: argparse.Namespace, shape: ModelShape) -> tuple[str, ...]:
    from memagent.estimator.advice.script_profile import lora_targets

    if arguments.lora_targets:
        return names_of(arguments.lora_targets)
    return lora_targets(TrainingSpec(shape))


def _traced_targets(
    arguments: argparse.Namespace, fallback: FormulaRequest | None
) -> Sequence[str] | str | None:
    """Return the layers that get adapters: by default the formula's, so that both answer alike."""
    targets: str | None = arguments.lora_targets
    if targets is not None:
        return targets if targets == "all-linear" else names_of(targets)
    return None if fallback is None or not arguments.lora_rank else fallback.spec.lora_targets


def _is_config(model: str) -> bool:
    # Path.is_dir raises for a name longer than a file's
    return os.path.isdir(model) or Path(model).suffix == ".json"  # noqa: PTH112


def _config_name(model: str) -> str:
    path = Path(model)
    return path.name if path.is_dir() else path.parent.name or path.name


def fit_command(arguments: argparse.Namespace, defaults: argparse.Namespace) -> str:
    """Return the `memagent fit` of the same step, "" if it can't be traced here."""
    usual = argparse.Namespace(**{**vars(arguments), "method": None})
    is_factory = _FACTORY.fullmatch(arguments.model) is not None
    if not is_factory and _untraced_reason(usual):
        return ""
    words = ["memagent", "fit", "--model", arguments.model]
    for name, default in vars(defaults).items():
        value = getattr(arguments, name)
        if value == default or name in ("method", "timeout"):
            continue
        flag = flag_of(name)
        values = value if isinstance(value, list) else [value]
        words += [flag] if value is True else [w for each in values for w in (flag, str(each))]
    return shlex.join(words)


def _images_of(request: EstimateRequest) -> Iterator[tuple[int, int]]:
    """Yield the height and width of a batch of images."""
    if isinstance(request, FormulaRequest):
        shape = request.spec.model
        yield from [(shape.image, shape.image)] if shape.patch else []
    else:
        # a batch of images has four dimensions: samples, channels, height, width
        yield from (shape[2:] for shape, _ in tensor_specs(request.inputs) if len(shape) == 4)


def title_of(arguments: argparse.Namespace, batch: int, request: EstimateRequest) -> str:
    """Return the model by its name or file, its input, and its card."""
    model = arguments.model
    is_factory = _FACTORY.fullmatch(model) is not None
    name = _config_name(model) if not is_factory and _is_config(model) else model
    if arguments.input:
        size = f"inputs {' '.join(arguments.input)}"
        size += f", batch {batch}" if arguments.max_batch else ""
    else:
        size = f"batch {batch}"
        size += f" x {arguments.sequence:,} tokens" if arguments.sequence else ""
        size += "".join(f" x {high} x {wide} pixels" for high, wide in _images_of(request))
    return f"{name}, {size}" + (f", on {arguments.gpu}" if arguments.gpu else "")
