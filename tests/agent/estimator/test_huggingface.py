"""A config.json traced with the class of the installed transformers: inputs and errors."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("transformers")

from memagent.errors import EstimateError, OptionError
from memagent.estimator import engine
from memagent.estimator.api import estimate_config
from memagent.estimator.huggingface import (
    ConfiguredModel,
    inputs_for,
    load_class,
    request_for_config,
)
from memagent.estimator.trace.tracing import record_trace
from tests.agent.estimator.trace.real_steps import real_trace

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_key_value_heads": 2,
    **SMALL,
}
KINDS = {
    "llama": (LLAMA, {"input_ids": ((2, 16), "int64"), "labels": ((2, 16), "int64")}),
    "bert": (
        {"model_type": "bert", **SMALL},
        {"input_ids": ((2, 16), "int64"), "labels": ((2, 16), "int64")},
    ),
    "bert classifying": (
        {"model_type": "bert", "architectures": ["BertForSequenceClassification"], **SMALL},
        {"input_ids": ((2, 16), "int64"), "labels": ((2,), "int64")},
    ),
    "vit": (
        {
            "model_type": "vit",
            "architectures": ["ViTForImageClassification"],
            "image_size": 32,
            "patch_size": 8,
            **SMALL,
        },
        {"pixel_values": ((2, 3, 32, 32), "float32"), "labels": ((2,), "int64")},
    ),
    "t5 without a start token": (
        {
            "model_type": "t5",
            "d_model": 64,
            "d_ff": 128,
            "num_layers": 2,
            "num_heads": 4,
            "d_kv": 16,
            "vocab_size": 100,
        },
        {"input_ids": ((2, 16), "int64"), "labels": ((2, 16), "int64")},
    ),
    "mamba, which has no attention": (
        {
            "model_type": "mamba",
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "vocab_size": 100,
            "state_size": 8,
        },
        {"input_ids": ((2, 16), "int64"), "labels": ((2, 16), "int64")},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_model_gets_its_training_inputs(kind):
    config, expected = KINDS[kind]
    sequence = None if "pixel_values" in expected else 16
    request = request_for_config(config, batch=2, sequence=sequence, precision="fp32", device="cpu")
    assert request.inputs == expected
    trace = engine.record(request)
    assert trace.parameters == sum(p.numel() for p in ConfiguredModel(config)().parameters())
    assert trace.notes == () or "no loss" not in trace.notes[0]


@pytest.mark.parametrize(
    ("config", "model_class"),
    [
        ({"model_type": "bert"}, "BertForMaskedLM"),
        ({"model_type": "bert", "is_decoder": True}, "BertLMHeadModel"),
        ({"model_type": "bart"}, "BartForConditionalGeneration"),
        ({"model_type": "gpt2"}, "GPT2LMHeadModel"),
        ({"model_type": "resnet"}, "ResNetForImageClassification"),
        ({"model_type": "gpt2", "architectures": ["NobodysModel"]}, "GPT2LMHeadModel"),
    ],
)
def test_a_config_without_a_class_gets_what_it_was_published_for_as_a_choice(config, model_class):
    request = request_for_config(config)
    assert load_class(config)[0].__name__ == model_class
    (choice,) = request.remarks
    assert choice.startswith(f"{model_class} was chosen, since ")
    assert ("NobodysModel" in choice) == ("architectures" in config)


def test_a_class_that_the_config_names_is_no_choice():
    assert request_for_config(LLAMA).remarks == ()


def test_the_traced_peaks_are_those_of_a_real_run_of_the_same_config():
    model = ConfiguredModel(LLAMA, checkpointing="non_reentrant", loop="step")
    ids = torch.arange(32).view(2, 16)
    real = real_trace(model, {"input_ids": ids, "labels": ids}).summary()
    request = request_for_config(
        LLAMA, batch=2, sequence=16, precision="fp32", checkpointing="non_reentrant", loop="step",
        device="cpu",
    )  # fmt: skip
    assert engine.record(request).summary().phase_peak_bytes == real.phase_peak_bytes


def test_a_file_its_folder_and_its_content_are_the_same_request(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    requests = [
        request_for_config(config, batch=2)
        for config in (LLAMA, tmp_path, str(tmp_path / "config.json"))
    ]
    assert requests[0] == requests[1] == requests[2]


def test_rotary_models_get_2048_tokens_and_others_all_their_positions():
    assert inputs_for(LLAMA, batch=1, sequence=None)["input_ids"] == ((1, 2048), "int64")
    assert inputs_for({"model_type": "bert", **SMALL}, batch=1, sequence=None)["input_ids"] == (
        (1, 512),
        "int64",
    )


def test_precision_sets_the_dtypes_of_weights_and_autocast():
    def sizes(precision):
        result = estimate_config(LLAMA, batch=2, sequence=16, precision=precision)
        return result.components["parameters"], result.assumptions["autocast"]

    whole = sizes("fp32")[0]
    assert sizes("amp") == (whole, "bf16") and sizes("fp16-amp") == (whole, "fp16")
    assert sizes("bf16") == (whole // 2, "none")


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft asks transformers by an old name
def test_only_adapters_are_trained():
    pytest.importorskip("peft")
    result = estimate_config(
        LLAMA,
        batch=2,
        sequence=16,
        precision="fp32",
        lora_rank=4,
        lora_targets=["q_proj", "v_proj"],
    )
    adapters = 2 * 4 * (4 * (64 + 64) + 4 * (64 + 32))  # two layers, fp32, q and v of rank 4
    assert result.components["gradients"] == adapters


def test_a_misspelt_target_is_refused_before_any_weight_is_made(tmp_path):
    built = tmp_path / "built"

    class Watched(ConfiguredModel):
        def __call__(self):
            with built.open("a") as file:  # in the process that traces
                file.write(f"{torch.empty(1).device}\n")
            return super().__call__()

    model = Watched(LLAMA, lora_rank=4, lora_targets=["q_prj"])
    with pytest.raises(OptionError, match=r"^lora_targets q_prj match no layer .*q_proj"):
        record_trace(model, inputs_for(LLAMA, batch=2, sequence=16))
    assert built.read_text() == "meta\n"


def test_it_is_the_same_as_tracing_the_model_by_hand():
    by_hand = record_trace(
        ConfiguredModel(LLAMA, loop="step"),
        inputs_for(LLAMA, batch=2, sequence=16),
        autocast="bf16",
    )
    assert (
        engine.record(request_for_config(LLAMA, batch=2, sequence=16, loop="step")).summary()
        == by_hand.summary()
    )


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        ({"hidden_size": 64}, {}, "no model_type"),
        ({"model_type": "no_such_model"}, {}, "no_such_model"),
        (LLAMA, {"precision": "fp8"}, "fp8"),
        ("nowhere/config.json", {}, "nowhere"),
    ],
)
def test_it_names_an_invalid_config_or_option(config, options, words):
    with pytest.raises(EstimateError, match=words):
        request_for_config(config, **options)
