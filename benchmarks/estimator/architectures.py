"""Architectures of `transformers` by their configs' names, with random weights, for `agreement`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.estimator.families import Batch, Built, Tensors, own_loss
from benchmarks.estimator.language import prepared, text
from benchmarks.estimator.workload import Case

_WIDTH, _LAYERS, _HEADS, _WORDS, _ROWS, _LENGTH = 1024, 4, 16, 32000, 4, 512
_IMAGES, _PIXELS = 8, 224
_BF16: dict[str, Any] = {"autocast": "bfloat16"}

_DECODERS = (
    "gemma", "gemma2", "qwen2", "qwen3", "mistral", "phi", "phi3", "falcon", "opt", "bloom",
    "gpt_neox", "gptj", "olmo2", "stablelm", "granite", "starcoder2", "cohere",
)  # fmt: skip
_ENCODERS = ("roberta", "electra", "albert", "distilbert", "deberta-v2", "modernbert")
_TRANSLATORS = ("bart", "mbart", "pegasus")
_IMAGE_MODELS = ("convnext", "swin", "dinov2", "regnet", "mobilenet_v2")


def cases() -> list[Case]:
    """Return a training of each, by turns in fp32, under autocast and checkpointed."""
    settings: tuple[dict[str, Any], ...] = (
        {},
        {**_BF16, "optimizer": "adamw_foreach"},
        {"checkpointing": "non_reentrant"},
        {"dtype": "bfloat16", "optimizer": "momentum"},
    )
    named = [*_DECODERS, *_ENCODERS, *_TRANSLATORS]
    trained = [Case(name, name, **settings[i % 4]) for i, name in enumerate(named)]
    return trained + [Case(name, name, **settings[i % 2]) for i, name in enumerate(_IMAGE_MODELS)]


def _decoder(case: Case) -> Built:
    from transformers import AutoModelForCausalLM

    return _texts(case, AutoModelForCausalLM)


def _encoder(case: Case) -> Built:
    from transformers import AutoModelForMaskedLM

    return _texts(case, AutoModelForMaskedLM)


def _translator(case: Case) -> Built:
    from transformers import AutoModelForSeq2SeqLM

    return _texts(case, AutoModelForSeq2SeqLM)


def _texts(case: Case, kind: Any) -> Built:
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
    model = kind.from_config(_config(case.family, vocab_size=_WORDS, **special))
    return prepared(case, model, []), text(_ROWS, _LENGTH, _WORDS), own_loss


def _image_model(case: Case) -> Built:
    from transformers import AutoModelForImageClassification

    model = AutoModelForImageClassification.from_config(_config(case.family, num_labels=100))
    return prepared(case, model, []), _images(), own_loss


def _config(name: str, **rest: Any) -> Any:
    """Return the architecture's default config; transformers get a common, smaller shape."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(name, **rest)
    shape = {
        "hidden_size": _WIDTH,
        "intermediate_size": 4 * _WIDTH,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS // 4,
    }
    is_text = "vocab_size" in rest
    return AutoConfig.for_model(name, **shape, **rest) if is_text else config


def _images() -> Batch:
    def batch() -> tuple[Tensors, Tensors]:
        images = torch.randn(_IMAGES, 3, _PIXELS, _PIXELS)
        return {"pixel_values": images, "labels": torch.randint(100, (_IMAGES,))}, {}

    return batch


FAMILIES: dict[str, Callable[[Case], Built]] = {
    **dict.fromkeys(_DECODERS, _decoder),
    **dict.fromkeys(_ENCODERS, _encoder),
    **dict.fromkeys(_TRANSLATORS, _translator),
    **dict.fromkeys(_IMAGE_MODELS, _image_model),
}
