"""The most used models by the names of the hub, and the facts of their configs."""

from __future__ import annotations

import functools

import pytest
import torch

from memagent.errors import UnknownModelError
from memagent.estimator.formula.presets import CONFIGS, PRESETS, canonical_name, preset
from memagent.estimator.huggingface import ConfiguredModel, load_class, request_for_config

HUB_NAMES = {
    "meta-llama/Llama-2-7b-hf": 6.74, "meta-llama/Llama-2-7b-chat-hf": 6.74,
    "meta-llama/Llama-2-13b-chat-hf": 13.0, "meta-llama/Llama-2-70b-hf": 69.0,
    "meta-llama/Meta-Llama-3-8B": 8.03, "meta-llama/Meta-Llama-3-8B-Instruct": 8.03,
    "meta-llama/Llama-3.1-8B-Instruct": 8.03, "meta-llama/Meta-Llama-3.1-70B-Instruct": 70.6,
    "meta-llama/Llama-3.2-1B-Instruct": 1.24, "meta-llama/Llama-3.2-3B": 3.21,
    "meta-llama/Llama-3.3-70B-Instruct": 70.6, "codellama/CodeLlama-7b-Python-hf": 6.74,
    "mistralai/Mistral-7B-v0.1": 7.24, "mistralai/Mistral-7B-Instruct-v0.3": 7.25,
    "mistralai/Mistral-Nemo-Instruct-2407": 12.2, "mistralai/Mixtral-8x7B-Instruct-v0.1": 46.7,
    "Qwen/Qwen2-7B-Instruct": 7.62, "Qwen/Qwen2.5-0.5B-Instruct": 0.494,
    "Qwen/Qwen2.5-7B-Instruct": 7.62, "Qwen/Qwen2.5-Coder-32B-Instruct": 32.8,
    "Qwen/Qwen3-0.6B": 0.596, "Qwen/Qwen3-8B": 8.19, "Qwen/Qwen3-4B-Instruct-2507": 4.02,
    "Qwen/Qwen3-30B-A3B": 30.5, "google/gemma-2b": 2.51, "google/gemma-7b-it": 8.54,
    "google/gemma-2-2b-it": 2.61, "google/gemma-2-9b": 9.24, "google/gemma-3-1b-it": 1.0,
    "microsoft/phi-2": 2.78, "microsoft/phi-1_5": 1.42, "microsoft/Phi-3-mini-4k-instruct": 3.82,
    "microsoft/phi-4": 14.7, "microsoft/Phi-4-mini-instruct": 3.84,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1.1, "openai-community/gpt2": 0.124,
    "openai-community/gpt2-xl": 1.56, "distilbert/distilgpt2": 0.0819,
    "EleutherAI/gpt-neo-125m": 0.125, "EleutherAI/gpt-j-6b": 6.05,
    "EleutherAI/gpt-neox-20b": 20.6, "EleutherAI/pythia-160m": 0.162, "facebook/opt-125m": 0.125,
    "facebook/opt-1.3b": 1.32, "bigscience/bloom-560m": 0.559, "tiiuae/falcon-7b": 6.92,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1.78,
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": 8.03, "HuggingFaceTB/SmolLM2-135M": 0.135,
    "ibm-granite/granite-3.1-8b-instruct": 8.17, "google-bert/bert-base-uncased": 0.1095,
    "google-bert/bert-base-cased": 0.108, "distilbert/distilbert-base-uncased": 0.067,
    "FacebookAI/roberta-base": 0.125, "FacebookAI/xlm-roberta-base": 0.278,
    "microsoft/deberta-v3-base": 0.184, "google/electra-base-discriminator": 0.109,
    "albert/albert-base-v2": 0.0112, "sentence-transformers/all-MiniLM-L6-v2": 0.0227,
    "google-t5/t5-small": 0.0605, "google/flan-t5-base": 0.223, "facebook/bart-base": 0.139,
    "openai/whisper-small": 0.242, "openai/whisper-large-v3": 1.54,
    "openai/clip-vit-base-patch32": 0.151, "google/vit-base-patch16-224": 0.0866,
    "facebook/dinov2-base": 0.087, "microsoft/swin-tiny-patch4-window7-224": 0.0283,
    "facebook/convnext-tiny-224": 0.0286, "microsoft/resnet-50": 0.0256,
    "facebook/wav2vec2-base-960h": 0.0944,
}  # fmt: skip
"""Billions of parameters as published; Flan-T5 with tied embeddings, as in transformers 5."""


@functools.cache
def parameter_count(key: str) -> int:
    with torch.device("meta"):
        model = ConfiguredModel(CONFIGS[key], attention=None)()
    return sum(parameter.numel() for parameter in model.parameters())


def test_there_are_the_most_used_names():
    assert len(HUB_NAMES) >= 63


@pytest.mark.parametrize(("name", "billions"), HUB_NAMES.items())
def test_a_name_of_the_hub_is_a_model_of_its_published_size(name, billions):
    key = canonical_name(name)
    assert key is not None
    if key in PRESETS:
        assert PRESETS[key].parameter_count() == pytest.approx(billions * 1e9, rel=0.02)
    else:
        load_class(CONFIGS[key])  # an installed class can be traced
        if billions < 3:
            assert parameter_count(key) == pytest.approx(billions * 1e9, rel=0.02)


@pytest.mark.parametrize("name", ["openai/whisper-small", "openai/clip-vit-base-patch32"])
def test_a_family_with_other_inputs_than_text_has_them(name):
    request = request_for_config(CONFIGS[canonical_name(name)], batch=2)
    assert request.batch == 2 and "int64" in str(request.inputs)


@pytest.mark.parametrize("name", ["gpt9", "mistral-7b-openorca", "llama-3-9b", "instruct", ""])
def test_no_model_is_guessed(name):
    assert canonical_name(name) is None
    with pytest.raises(UnknownModelError, match="is not known"):
        preset(name)


def test_a_family_that_only_a_trace_knows_says_what_to_install():
    with pytest.raises(UnknownModelError, match="pip install torch transformers"):
        preset("microsoft/resnet-50")
