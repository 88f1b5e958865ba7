"""The training inputs of a model of transformers as shapes: text, images, pairs, sound.

They follow from the input that the class names (`main_input_name`), its config and its ending.
"""

from __future__ import annotations

from typing import Any

from memagent.errors import OptionError, UnknownModelError
from memagent.estimator.formula.from_config import HEAD_CLASSES
from memagent.estimator.input_specs import TensorSpec

_DEFAULT_TOKENS = 2048
_SOUND_SAMPLES = 10 * 16_000
"""Ten seconds at 16 kHz."""
_TOKEN_LABELS = (*HEAD_CLASSES["lm"], *HEAD_CLASSES["mlm"], "ForTokenClassification", "MTModel")
_SAMPLE_LABELS = HEAD_CLASSES["classifier"]
"""Endings of the classes with a label for each token, and for each sample."""
_PAIRS = ("clip", "siglip")
"""Model types that train on pairs of a text and an image."""
_PADDED_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer")
"""Model types whose positions begin after the padding's, so that two rows take no token."""


def inputs_of(
    model_class: Any, config: Any, *, batch: int, sequence: int | None, dtype: str
) -> dict[str, TensorSpec]:
    """Return the inputs of a model's class by name. Raises EstimateError if they are of no kind
    above, such as images within a text.
    """
    name, main_input = model_class.__name__, model_class.main_input_name
    is_pair = config.model_type in _PAIRS
    if hasattr(config, "vision_config") and not is_pair:
        raise _unknown(name, "images with text")
    tokens = sequence or learned_positions(config)
    inputs: dict[str, TensorSpec]
    if main_input == "pixel_values" and _has_images(config):
        if sequence is not None:
            raise OptionError("sequence", f"is {sequence}: {name} takes images, so leave it out")
        inputs = {"pixel_values": (_images(config, batch), dtype)}
    elif main_input == "input_ids":
        text = config.text_config if is_pair else config
        tokens = tokens or learned_positions(text) or _DEFAULT_TOKENS
        inputs = {"input_ids": ((batch, tokens), "int64")}
        if is_pair:
            inputs["pixel_values"] = (_images(config.vision_config, batch), dtype)
    elif main_input == "input_features" and hasattr(config, "max_source_positions"):
        tokens = tokens or config.max_target_positions
        if tokens > config.max_target_positions:
            rows = config.max_target_positions
            raise OptionError("sequence", f"is {tokens}: {name} has {rows} positions")
        frames = 2 * config.max_source_positions  # spectrograms of 30 s
        inputs = {"input_features": ((batch, config.num_mel_bins, frames), dtype)}
    elif main_input == "input_values":
        inputs = {"input_values": ((batch, sequence or _SOUND_SAMPLES), dtype)}
    else:
        raise _unknown(name, main_input)
    return inputs | _labels(name, inputs, tokens or 0)


def learned_positions(config: Any) -> int | None:
    """Return the tokens of learned positions; a rotary model's limit says nothing."""
    if getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None):
        return None
    rows = getattr(config, "n_positions", None) or getattr(config, "max_position_embeddings", None)
    return rows - 2 if rows and config.model_type in _PADDED_POSITIONS else rows


def _labels(name: str, inputs: dict[str, TensorSpec], tokens: int) -> dict[str, TensorSpec]:
    (batch, *_), _ = next(iter(inputs.values()))
    if name.endswith(_TOKEN_LABELS):
        return {"labels": ((batch, tokens), "int64")}
    if name.endswith(_SAMPLE_LABELS):
        return {"labels": ((batch,), "int64")}
    if name.endswith("ForSemanticSegmentation"):
        (_, _, *size), _ = inputs["pixel_values"]
        return {"labels": ((batch, *size), "int64")}
    if name.endswith("ForQuestionAnswering"):
        return dict.fromkeys(("start_positions", "end_positions"), ((batch,), "int64"))
    return {}


def _has_images(config: Any) -> bool:
    """Return whether the inputs are images: of videos and detections a config doesn't say all."""
    return not hasattr(config, "num_frames") and not hasattr(config, "num_queries")


def _images(config: Any, batch: int) -> tuple[int, ...]:
    size, channels = getattr(config, "image_size", 224), getattr(config, "num_channels", 3)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return batch, channels, height, width


def _unknown(name: str, what: str) -> UnknownModelError:
    return UnknownModelError(f"{name} takes {what}: trace it by path.py:factory with --input")
