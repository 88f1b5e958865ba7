"""The inputs of models of transformers, from their classes and configs."""

from __future__ import annotations

import pytest

from memagent.errors import EstimateError
from memagent.estimator.formula.presets import model_config
from memagent.estimator.huggingface import inputs_for


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("gpt2", {"input_ids": (2, 1024), "labels": (2, 1024)}),
        ("qwen3-0.6b", {"input_ids": (2, 2048), "labels": (2, 2048)}),
        ("bge-small-en", {"input_ids": (2, 512)}),
        ("all-mpnet-base-v2", {"input_ids": (2, 512), "labels": (2, 512)}),  # 514 rows
        ("roberta-base", {"input_ids": (2, 512), "labels": (2, 512)}),
        ("opus-mt-en-de", {"input_ids": (2, 512), "labels": (2, 512)}),
        ("whisper-small", {"input_features": (2, 80, 3000), "labels": (2, 448)}),
        ("clip-vit-base-patch32", {"input_ids": (2, 77), "pixel_values": (2, 3, 224, 224)}),
        ("siglip-base-patch16-224", {"input_ids": (2, 64), "pixel_values": (2, 3, 224, 224)}),
        ("vit-b-16", {"pixel_values": (2, 3, 224, 224), "labels": (2,)}),
        ("segformer-b0", {"pixel_values": (2, 3, 512, 512), "labels": (2, 512, 512)}),
        ("hubert-base", {"input_values": (2, 160_000)}),
    ],
)
def test_a_model_gets_the_inputs_of_its_class(name, shapes):
    inputs = inputs_for(model_config(name), batch=2, sequence=None)
    assert {key: shape for key, (shape, _) in inputs.items()} == shapes


@pytest.mark.parametrize(
    "architecture",
    ["Qwen2_5_VLForConditionalGeneration", "PaliGemmaForConditionalGeneration",
     "VideoMAEForVideoClassification", "DetrForObjectDetection"],
)  # fmt: skip
def test_inputs_that_a_config_does_not_describe_are_refused(architecture):
    import transformers

    kind = getattr(transformers, architecture).config_class.model_type
    config = {"model_type": kind, "architectures": [architecture]}
    with pytest.raises(EstimateError, match=r"trace it by path\.py:factory with --input"):
        inputs_for(config, batch=2, sequence=None)
