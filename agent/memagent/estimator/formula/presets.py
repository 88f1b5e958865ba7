"""Well-known models by the names of the hub: facts of their published config.json files.

`models.json` has them; nothing is downloaded. Fine-tuned variants (`-Instruct`, `-chat`, `-it`)
have the shape of their base model, so a name is looked up without the words that say so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
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
ALIASES = cast(
    dict[str, str],
    json.loads(Path(__file__).with_name("model_aliases.json").read_text(encoding="utf-8")),
)
"""The short names of models that have another's shape."""
PRESETS: dict[str, ModelShape] = {}
"""The shapes of those that the formula knows."""
for _name, _config in CONFIGS.items():
    with suppress(UnknownModelError):
        PRESETS[_name] = from_config(_config, name=_name)
_DATE = r"2[3-6](0[1-9]|1[0-2])|(?!1024)(0[1-9]|1[0-2])2[3-6]"
_VARIANT = re.compile(
    r"hf|meta|instruct|chat|it|pt|base|sft|dpo|coder|math|python|thinking|uncased|cased|"
    r"discriminator|in\d+k|ft|\d+k|1m|\d+h|224|v0\.\d|v1|v1\.0|"
    rf"{_DATE}|"
    r"bnb|4bit|unsloth|gptq|awq|int[48]|fp8|intermediate|step|deduped|mono|multi|nl|reasoning|"
    r"embedding"
)
"""Words in a name that leave the shape as it is."""
_LEFT_OUT = dict.fromkeys(("gemma-3-4b", "gemma-3-12b", "gemma-3-27b"), "vision tower")
"""Parts of the hub's models that the text models of `CONFIGS` lack."""
_OUTSIDE = {
    r"\bvl\b|vision|vlm|llava|internvl|paligemma|blip|florence|idefics|gemma-3n|llama-4": (
        "models that take images within a text are traced"
    ),
    r"diffusion|sdxl|\bsd-|flux": "the networks of a diffusion pipeline are traced",
    r"yolo|detr|rcnn|retinanet|mask2former": "detectors are traced",
}
"""Words of names by whose models' inputs a config doesn't describe a step."""


_KEYS = sorted({*CONFIGS, *ALIASES})


def canonical_name(name: str) -> str | None:
    """Return the short name of a model, with or without owner, in any case; None if unknown."""
    key = _known_name(name)
    return None if key is None else ALIASES.get(key, key)


def name_choices(name: str) -> Iterator[str]:
    """Yield how the config that a name gets may differ from the hub's."""
    key = _known_name(name)
    if key is None:
        return
    known = key.split("-")
    # a release of another date may have another vocabulary, or head
    dates = [word for word in _words(name) if re.fullmatch(_DATE, word) and word not in known]
    if dates:
        yield (
            f"The config of {key} was chosen: that of {dates[0]} isn't known, and may differ "
            "(--hub fetches it)."
        )
    if part := _LEFT_OUT.get(ALIASES.get(key, key)):
        yield f"The text model of {key} was chosen: the hub's {part} is left out."


@lru_cache(maxsize=1024)
def _known_name(name: str) -> str | None:
    """Return the known name or alias of a model.

    The name that keeps most of its words counts: mistral-7b-instruct-v0.3 is mistral-7b-v0.3. Of
    two, the one that keeps the first words: the last ones say the variant most often.
    """
    words = _words(name)
    fitting = ((places, key) for key in _KEYS if (places := _places_of(words, key.split("-"))))
    places, key = min(fitting, key=lambda item: (-len(item[0]), item[0]), default=((), ""))
    return key if places else None


def _words(name: str) -> list[str]:
    return re.split(r"[-_ ]+", name.lower().rpartition("/")[2].strip())


def _places_of(words: Sequence[str], known: Sequence[str]) -> tuple[int, ...]:
    """Return the places of a known name's words, () if it lacks a word that changes the shape."""
    places: list[int] = []
    for place, word in enumerate(words):
        if len(places) < len(known) and word == known[len(places)]:
            places.append(place)
        elif not _VARIANT.fullmatch(word):
            return ()
    return tuple(places) if len(places) == len(known) else ()


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
    # the nearest name would be a text model of the same family
    for pattern, what in _OUTSIDE.items():
        if re.search(pattern, name.lower()):
            raise UnknownModelError(
                f"model {name!r} is not known: {what} only by path.py:factory with --input"
            )
    near = get_close_matches(name.lower().rpartition("/")[2], [*CONFIGS, *ALIASES], 4, 0.4)
    raise UnknownModelError(
        f"model {name!r} is not known: did you mean {', '.join(near or ['gpt2', 'llama-3-8b'])}? "
        "Any other model can be traced: give its config.json (--hub fetches it), or "
        "path.py:factory."
    )
