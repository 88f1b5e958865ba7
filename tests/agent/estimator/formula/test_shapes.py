"""Parameter counts of presets and configs, against models on the meta device."""

from __future__ import annotations

import functools

import pytest
import torch

from memagent.errors import EstimateError
from memagent.estimator.formula.families import FAMILIES
from memagent.estimator.formula.from_config import from_config
from memagent.estimator.formula.presets import CONFIGS, PRESETS, preset
from memagent.estimator.formula.shapes import ModelShape, matrices

SMALL = (
    "gpt2",
    "gpt_bigcode",
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "gemma",
    "phi",
    "phi3",
    "gpt_neox",
    "bert",
    "roberta",
    "vit",
    "t5",
    "t5-gated",
)


_TASKS = {
    "opt": "CausalLM", "starcoder2": "CausalLM", "distilbert": "MaskedLM", "bert": "MaskedLM",
    "roberta": "MaskedLM",
}  # fmt: skip


def config_of(zoo, shape: ModelShape):
    """A config of transformers with this shape's numbers."""
    transformers, family = zoo.library(), shape.family
    sizes = {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.ffn_width,
    }
    if family in ("opt", "starcoder2", "distilbert", "bart", "mbart", "pegasus") or (
        shape.name.startswith("mt5")
    ):
        config = transformers.AutoConfig.for_model(**CONFIGS[shape.name])
        return config, getattr(transformers, f"AutoModelFor{_TASKS.get(family, 'Seq2SeqLM')}")
    if family in ("gpt2", "gpt_bigcode"):
        kind = transformers.GPT2Config if family == "gpt2" else transformers.GPTBigCodeConfig
        named = {
            "n_layer": shape.layers,
            "n_embd": shape.hidden,
            "n_head": shape.heads,
            "n_positions": shape.positions,
        }
        return kind(
            **named, vocab_size=shape.vocab, bos_token_id=0, eos_token_id=0
        ), transformers.AutoModelForCausalLM
    if family == "t5":
        named = {
            "num_layers": shape.layers,
            "num_decoder_layers": shape.decoder_layers,
            "d_model": shape.hidden,
            "num_heads": shape.heads,
            "d_ff": shape.ffn_width,
        }
        projection = "gated-gelu" if shape.is_gated else "relu"
        config = transformers.T5Config(
            **named, d_kv=shape.head_dim, vocab_size=shape.vocab, feed_forward_proj=projection
        )
        return config, transformers.AutoModelForSeq2SeqLM
    if family == "vit":
        return transformers.ViTConfig(
            **sizes, patch_size=shape.patch, image_size=shape.image, num_labels=1000
        ), transformers.AutoModelForImageClassification
    if family == "bert":
        kind = transformers.RobertaConfig if "roberta" in shape.name else transformers.BertConfig
        more = {"max_position_embeddings": shape.positions, "type_vocab_size": shape.token_types}
        config = kind(**sizes, **more, vocab_size=shape.vocab)
        has_head = shape.head != "none"
        return config, transformers.AutoModelForMaskedLM if has_head else transformers.AutoModel
    more = {
        "tie_word_embeddings": shape.is_tied,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    if shape.kv_heads:
        more["num_key_value_heads"] = shape.kv_heads
    if shape.head_dim:
        more["head_dim"] = shape.head_dim
    name = {
        "qwen2": "Qwen2",
        "qwen3": "Qwen3",
        "gemma": "Gemma",
        "phi": "Phi",
        "phi3": "Phi3",
        "gpt_neox": "GPTNeoX",
    }.get(family, "Llama")
    if shape.experts:
        name, more = "Mixtral", {**more, "num_local_experts": shape.experts}
    return getattr(transformers, f"{name}Config")(
        **sizes, **more, vocab_size=shape.vocab
    ), transformers.AutoModelForCausalLM


@pytest.fixture(scope="module")
def built(zoo):
    """The real model's parameters and its config.json, by name."""

    @functools.cache
    def build(name: str) -> tuple[int, dict]:
        config, kind = config_of(zoo, PRESETS[name])
        with torch.device("meta"):
            model = kind.from_config(config)
        content = {**config.to_dict(), "architectures": [type(model).__name__]}
        return sum(parameter.numel() for parameter in model.parameters()), content

    return build


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_exactly_the_real_models_parameters(built, name):
    assert PRESETS[name].parameter_count() == built(name)[0]


@pytest.mark.parametrize("name", PRESETS)
def test_a_config_has_exactly_the_real_models_parameters(built, name):
    count, config = built(name)
    assert from_config(config).parameter_count() == count


@pytest.mark.parametrize("family", SMALL)
def test_a_small_config_of_every_family_is_counted_exactly(zoo, family):
    case = zoo.build(family, layers=2)
    assert from_config(case.config).parameter_count() == sum(
        p.numel() for p in case.model.parameters()
    )


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("AutoModel", "bert"),
        ("AutoModelForSequenceClassification", "bert"),
        ("AutoModel", "vit"),
        ("AutoModelForSequenceClassification", "llama"),
        ("AutoModel", "gpt2"),
    ],
)
def test_other_heads_are_counted_exactly(zoo, kind, family):
    transformers = zoo.library()
    config = zoo.CONFIGS[family](2, 0.0)
    if family == "llama":
        config.num_labels = 5
    with torch.device("meta"):
        model = getattr(transformers, kind).from_config(config)
    content = {**config.to_dict(), "architectures": [type(model).__name__]}
    assert from_config(content).parameter_count() == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    "family", ["bert", "distilbert", "gpt2", "gpt_neox", "opt", "phi", "roberta", "starcoder2"]
)
def test_numbers_that_the_modules_do_not_read_do_not_count(zoo, family):
    transformers = zoo.library()
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    others = {"num_key_value_heads": 1, "intermediate_size": 96, "vocab_size": 100}
    config = transformers.AutoConfig.for_model(family, **sizes, **others, pad_token_id=0)
    kind = getattr(transformers, f"AutoModelFor{_TASKS.get(family, 'CausalLM')}")
    with torch.device("meta"):
        model = kind.from_config(config)
    content = {**config.to_dict(), "architectures": [type(model).__name__]}
    assert from_config(content).parameter_count() == sum(p.numel() for p in model.parameters())


def test_published_counts_hold_without_any_library():
    counts = {
        "gpt2": 124_439_808,
        "gpt2-xl": 1_557_611_200,
        "llama-2-7b": 6_738_415_616,
        "llama-3-8b": 8_030_261_248,
        "mistral-7b": 7_241_732_096,
        "mixtral-8x7b": 46_702_792_704,
        "bert-base": 109_514_298,
        "t5-base": 222_903_552,
        "vit-b-16": 86_567_656,
        "qwen2.5-7b": 7_615_616_512,
        "gemma-2b": 2_506_172_416,
    }
    assert {name: preset(name).parameter_count() for name in counts} == counts


def test_it_finds_a_model_by_the_usual_spellings():
    assert preset("meta-llama/Llama-2-7b-hf") is preset("llama-7b")
    assert preset("GPT2-XL").layers == 48
    with pytest.raises(EstimateError, match="mistral-7b"):
        preset("mistral-7")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "no model_type"),
        ({"model_type": "mamba"}, "mamba"),
        ({"model_type": "llama", "hidden_size": 8}, "num_hidden_layers"),
    ],
)
def test_it_names_the_fault_of_an_unreadable_config(config, words):
    with pytest.raises(EstimateError, match=words):
        from_config(config)


def test_invalid_shapes_are_refused():
    with pytest.raises(EstimateError, match="heads is 0"):
        ModelShape(1, 8, 0)
    with pytest.raises(EstimateError, match="experts_per_token"):
        ModelShape(1, 8, 1, experts=4)
    with pytest.raises(EstimateError, match="family 'rwkv'"):
        ModelShape(1, 8, 1, family="rwkv")


def test_every_family_names_its_linear_layers():
    for name in FAMILIES:
        shape = ModelShape(2, 32, 4, 100, family=name, labels=3)
        assert all(m.name and m.parameters > 0 for m in matrices(shape))
