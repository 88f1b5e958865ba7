"""Well-known models by the names of the hub: facts of their published config.json files.

`models.json` has them; nothing is downloaded. Fine-tuned variants (`-Instruct`, `-chat`, `-it`)
have the shape of their base model, so a name is looked up without the words that say so.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, cast

from memagent.errors import UnknownModelError
from memagent.estimator.formula.from_config import from_config
from memagent.estimator.formula.shapes import ModelShape

CONFIGS = cast(
    dict[str, dict[str, Any]],
    json.loads(Path(__file__).with_name("models.json").read_text(encoding="utf-8")),
)
"""The config of each model, by its short name."""
PRESETS: dict[str, ModelShape] = {}
"""The shapes of those that the formula knows."""
for _name, _config in CONFIGS.items():
    with suppress(UnknownModelError):
        PRESETS[_name] = from_config(_config, name=_name)
_VARIANT = re.compile(
    r"hf|meta|instruct|chat|it|pt|base|sft|dpo|coder|math|python|thinking|uncased|cased|"
    r"discriminator|generator|in\d+k|ft|\d+[km]|\d+h|224|v0\.\d|v1|v1\.0|2[45]\d\d|112[45]|"
    r"bnb|4bit|unsloth|gptq|awq|int[48]|fp8|intermediate|step|deduped|mono|multi|nl|reasoning|"
    r"embedding"
)
"""Words in a name that leave the shape as it is."""
_OTHER_NAMES = {
    "llama-7b": "llama-2-7b",
    "llama-13b": "llama-2-13b",
    "llama-70b": "llama-2-70b",
    "llama-8b": "llama-3-8b",
    "llama2-7b": "llama-2-7b",
    "llama2-13b": "llama-2-13b",
    "llama2-70b": "llama-2-70b",
    "llama3-8b": "llama-3-8b",
    "llama3-70b": "llama-3-70b",
    "llama-3.1-8b": "llama-3-8b",
    "llama-3.1-70b": "llama-3-70b",
    "llama-3.3-70b": "llama-3-70b",
    "vicuna-7b-v1.5": "llama-2-7b",
    "vicuna-13b-v1.5": "llama-2-13b",
    "tinyllama": "tinyllama-1.1b",
    "smollm-135m": "smollm2-135m",
    "smollm-360m": "smollm2-360m",
    "mixtral": "mixtral-8x7b",
    "mistral": "mistral-7b",
    "mistral-nemo": "mistral-nemo-12b",
    "zephyr-7b-beta": "mistral-7b",
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "deepseek-r1-distill-llama-8b": "llama-3-8b",
    "deepseek-r1-distill-llama-70b": "llama-3-70b",
    "qwq-32b": "qwen2.5-32b",
    "gemma-1.1-2b": "gemma-2b",
    "gemma-1.1-7b": "gemma-7b",
    "phi-1-5": "phi-1.5",
    "phi-3.5-mini": "phi-3-mini",
    **{f"granite-3.{n}-{size}": f"granite-3-{size}" for n in range(4) for size in ("2b", "8b")},
    "gpt2-small": "gpt2",
    "llama-guard-3-8b": "llama-3-8b",
    "hermes-3-llama-3.1-8b": "llama-3-8b",
    "openhermes-2.5-mistral-7b": "mistral-7b",
    "stablelm-2-1-6b": "stablelm-2-1.6b",
    "dolly-v2-3b": "pythia-2.8b",
    "dolly-v2-7b": "pythia-6.9b",
    "dolly-v2-12b": "pythia-12b",
    **{f"bloomz-{size}": f"bloom-{size}" for size in ("560m", "1b1", "1b7", "3b", "7b1")},
    "finbert": "bert-base",
    "biobert": "bert-base-cased",
    **{
        f"{name}-{size}{end}": f"bert-{size}"
        for name, end in (("bge", "-en"), ("bge", "-en-v1.5"), ("e5", "-v2"), ("gte", ""))
        for size in ("base", "large")
    },
    "bge-small-en-v1.5": "bge-small-en",
    "e5-small-v2": "bge-small-en",
    "paraphrase-multilingual-minilm-l12-v2": "multilingual-minilm-l12",
    "bge-m3": "xlm-roberta-large",
    "multilingual-e5-base": "xlm-roberta-base",
    "multilingual-e5-large": "xlm-roberta-large",
    "bart-large-cnn": "bart-large",
    "pegasus-xsum": "pegasus-large",
    "pegasus-cnn-dailymail": "pegasus-large",
    "mbart-large-50-many-to-many-mmt": "mbart-large-50",
    "nllb-200-distilled-600m": "nllb-200-600m",
    "deit-base-patch16": "vit-b-16",
    "hubert-base-ls960": "hubert-base",
    "segformer-b0-finetuned-ade-512-512": "segformer-b0",
    "whisper-large": "whisper-large-v2",
    "vit-b": "vit-b-16",
    "vit-l": "vit-l-16",
    "vit-h": "vit-h-14",
    "vit-base-patch16": "vit-b-16",
    "vit-base-patch32": "vit-b-32",
    "vit-large-patch16": "vit-l-16",
    "vit-huge-patch14": "vit-h-14",
    "swin-tiny": "swin-tiny-patch4-window7-224",
    "swin-base": "swin-base-patch4-window7-224",
    **{f"resnet{n}": f"resnet-{n}" for n in (18, 34, 50, 101, 152)},
}


@cache
def canonical_name(name: str) -> str | None:
    """Return the short name of a model, with or without owner, in any case; None if unknown."""
    key = name.lower().rpartition("/")[2].replace("_", "-")
    words = key.split("-")
    while True:
        key = "-".join(words)
        key = _OTHER_NAMES.get(key, key)
        if key in CONFIGS:
            return key
        variant = next((w for w in reversed(words) if _VARIANT.fullmatch(w)), None)
        if variant is None or len(words) == 1:
            return None
        words.pop(len(words) - 1 - words[::-1].index(variant))


def model_config(name: str) -> dict[str, Any] | None:
    """Return the config of a model by name; None if it's unknown."""
    key = canonical_name(name)
    return None if key is None else dict(CONFIGS[key])


def preset(name: str) -> ModelShape:
    """Return a model's shape by name, as the hub spells it (`meta-llama/Llama-2-7b-hf`).

    Raises UnknownModelError that says what would trace it, or lists the nearest names.
    """
    key = canonical_name(name)
    if key in PRESETS:
        return PRESETS[key]
    if key is not None:
        raise UnknownModelError(
            f"{name} is a {CONFIGS[key]['model_type']}, which the formula doesn't know. It can be "
            "traced: pip install torch transformers"
        )
    near = get_close_matches(name.lower().rpartition("/")[2], [*CONFIGS, *_OTHER_NAMES], 4, 0.4)
    raise UnknownModelError(
        f"model {name!r} is not known: did you mean {', '.join(near or ['gpt2', 'llama-3-8b'])}? "
        "Any other model can be traced: give its config.json (--hub fetches it), or "
        "path.py:factory."
    )
