"""Effects of a training's options on its memory: the tutorials' rules, and more."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from memagent.errors import EstimateError, UnknownModelError
from memagent.estimator.cards import CARDS
from memagent.estimator.devices import CONTEXT_BYTES
from memagent.estimator.formula.from_config import from_config
from memagent.estimator.formula.optimizers import OPTIMIZERS
from memagent.estimator.formula.parallel import Parallel
from memagent.estimator.formula.precision import PRECISIONS, QUANTISED
from memagent.estimator.formula.presets import PRESETS, preset
from memagent.estimator.formula.saved_tensors import cast_bytes, layer_saved
from memagent.estimator.formula.shapes import matrices
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_training
from memagent.estimator.formula.transients import loss_bytes
from memagent.wire.fields import COMPONENTS

LLAMA = preset("llama-7b")
SPEC = TrainingSpec(LLAMA, 1, 2048, precision="mixed")
SEVEN_BILLION = replace(SPEC, parameter_count=7_000_000_000)


def parts(spec: TrainingSpec) -> dict[str, int]:
    return estimate_training(spec).components


@pytest.mark.parametrize(
    ("precision", "weights", "gradients", "state"),
    [("fp32", 28, 28, 56), ("mixed", 14, 14, 84), ("bf16", 14, 14, 28), ("amp", 28, 28, 56)],
)
def test_seven_billion_parameters_agree_with_the_tutorials(precision, weights, gradients, state):
    result = parts(replace(SEVEN_BILLION, precision=precision))
    gigabytes = [result[name] / 1e9 for name in ("parameters", "gradients", "optimizer_state")]
    assert gigabytes == pytest.approx([weights, gradients, state], rel=1e-9)


def test_adam_in_mixed_precision_is_sixteen_bytes_a_parameter():
    result = parts(SEVEN_BILLION)
    assert result["parameters"] + result["gradients"] + result["optimizer_state"] == 112_000_000_000


def test_eight_bit_states_are_a_quarter():
    fp32 = replace(SEVEN_BILLION, precision="fp32")
    ratio = (
        parts(replace(fp32, optimizer="adamw8bit"))["optimizer_state"]
        / parts(fp32)["optimizer_state"]
    )
    assert ratio == pytest.approx(0.25, rel=0.02)


@pytest.mark.parametrize(
    ("stage", "per_parameter"), [(0, 16), (1, 4 + 12 / 8), (2, 2 + 14 / 8), (3, 16 / 8)]
)
def test_zero_over_eight_ranks_divides_as_its_table_says(stage, per_parameter):
    """Rajbhandari et al. 2020, figure 1: 16, 5.5, 3.75 and 2 bytes a parameter."""
    result = parts(replace(SEVEN_BILLION, parallel=Parallel(data=8, zero=stage)))
    total = result["parameters"] + result["gradients"] + result["optimizer_state"]
    assert total / 7e9 == pytest.approx(per_parameter, rel=1e-6)


def test_qlora_of_seven_billion_holds_about_three_and_a_half_gigabytes_of_weights():
    spec = replace(SPEC, precision="bf16", lora_rank=16, quantised="nf4-double")
    linear = sum(m.parameters for m in matrices(LLAMA) if m.layered and m.kind == "linear")
    weights_bytes = parts(spec)["parameters"]
    assert 3.3e9 < linear * QUANTISED["nf4-double"] < 3.6e9
    adapters = 16 * 4 * (4096 + 4096) * 32
    rest = LLAMA.parameter_count() - linear
    assert weights_bytes == pytest.approx(
        linear * QUANTISED["nf4-double"] + 2 * rest + 4 * adapters, rel=1e-6
    )


def test_double_quantisation_saves_its_scales():
    """QLoRA section 3: from 0.5 to 0.127 bits a parameter."""
    assert (QUANTISED["nf4"] - 0.5) * 8 == pytest.approx(0.5)
    assert (QUANTISED["nf4-double"] - 0.5) * 8 == pytest.approx(0.127, abs=0.001)


def test_attention_scores_are_batch_heads_sequence_squared():
    """Batch x heads x sequence^2 x 2 bytes; Llama saves them in fp32 too, for its softmax."""
    scores = layer_saved(replace(SPEC, batch=4, attention="eager")).split["attention_scores"]
    assert scores == (4 + 2) * 4 * 32 * 2048**2
    assert "attention_scores" not in layer_saved(SPEC).split


def test_the_peak_is_the_largest_phase_and_not_their_sum():
    estimate = estimate_training(SPEC)
    assert set(estimate.phases) == {"forward", "backward", "optimizer"}
    assert estimate.peak_allocated_bytes == max(estimate.phases.values())
    low, high = estimate.intervals["allocated"]
    assert low < estimate.peak_allocated_bytes < high
    assert set(estimate.components) <= set(COMPONENTS)


def test_it_is_json_and_lists_its_assumptions():
    content = estimate_training(replace(SPEC, gpu="a100")).to_dict()
    assert json.loads(json.dumps(content)) == content
    assert (
        content["assumptions"]["precision"] == "mixed"
        and content["assumptions"]["parameters"] == LLAMA.parameter_count()
    )
    assert content["fits"] is False and content["terms"]["cublas_workspace"] == 2 * 8_519_680


def test_a_gpu_adds_its_context_and_what_cannot_be_reused():
    bare, device = estimate_training(SPEC), estimate_training(replace(SPEC, gpu="a100"))
    assert bare.peak_device_bytes is None and bare.fits is None
    assert device.components["context"] == CONTEXT_BYTES
    added = device.components["context"] + device.components["fragmentation"]
    assert device.peak_device_bytes == device.peak_allocated_bytes + added
    assert device.limit_bytes == CARDS["a100"].total_bytes
    assert device.margin_bytes == device.limit_bytes - device.peak_device_bytes


def test_ranks_of_a_gpu_hold_buffers_of_nccl_for_each_group():
    alone = estimate_training(replace(SPEC, gpu="a100"))
    sharded = replace(SPEC, gpu="a100", parallel=Parallel(data=8, tensor=2))
    result = estimate_training(sharded)
    assert "nccl_buffers" not in alone.terms
    assert result.terms["nccl_buffers"] == (688 + 544) << 20
    assert result.components["context"] == CONTEXT_BYTES
    assert result.peak_device_bytes - result.peak_reserved_bytes == CONTEXT_BYTES + (1232 << 20)
    low, high = result.intervals["device"]
    assert high - result.peak_device_bytes > (2 * 1600 - 1232) << 20
    assert "nccl_buffers" not in estimate_training(replace(sharded, gpu=None)).terms


def test_hoppers_workspace_is_larger():
    assert estimate_training(replace(SPEC, gpu="h100")).terms["cublas_workspace"] == 2 * 32 * 2**20


def test_a_measured_context_replaces_the_usual_one():
    assert (
        estimate_training(replace(SPEC, gpu="a100"), context_bytes=700 * 2**20).components[
            "context"
        ]
        == 700 * 2**20
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_optimizer_and_precision_can_be_estimated(optimizer, precision):
    estimate = estimate_training(replace(SPEC, optimizer=optimizer, precision=precision))
    assert estimate.peak_allocated_bytes > LLAMA.parameter_count() * 2
    assert estimate.components["optimizer_state"] >= 0


def test_states_by_optimizer():
    state = {
        name: parts(replace(SPEC, precision="fp32", optimizer=name))["optimizer_state"]
        / LLAMA.parameter_count()
        for name in OPTIMIZERS
    }
    assert (
        state["sgd"],
        state["momentum"],
        state["lion"],
        state["muon"],
        state["adamw"],
        state["amsgrad"],
    ) == (0, 4, 4, 4, 8, 12)
    assert 0 < state["adafactor"] < 0.02
    assert state["lbfgs"] > 800
    assert state["paged_adamw8bit"] == state["adamw8bit"] < 2.07


def test_foreach_fused_and_the_loop_differ_in_the_optimizers_step():
    steps = {}
    for name in ("foreach", "fused", "single"):
        steps[name] = estimate_training(
            replace(SPEC, precision="bf16", implementation=name)
        ).phases["optimizer"]
    assert steps["foreach"] - steps["fused"] == 2 * LLAMA.parameter_count()
    assert steps["single"] - steps["fused"] == 2 * 2 * 32_000 * 4096


def test_autocast_keeps_a_cast_copy_of_every_linear_weight():
    amp = replace(SPEC, precision="amp")
    linear = sum(
        m.copies * m.rows * m.cols for m in matrices(LLAMA) if m.kind in ("linear", "head")
    )
    assert cast_bytes(amp) == 2 * linear
    assert cast_bytes(replace(SPEC, precision="bf16")) == 0


def test_checkpointing_every_second_layer_lies_between_all_and_none():
    peaks = [
        estimate_training(replace(SPEC, batch=8, **options)).peak_allocated_bytes
        for options in (
            {"checkpointing": "full"},
            {"checkpointing": "full", "checkpoint_every": 2},
            {},
        )
    ]
    assert peaks == sorted(peaks) and len(set(peaks)) == 3


def test_losses_from_the_largest_to_the_smallest():
    sizes = [
        loss_bytes(replace(SPEC, batch=4, loss=loss)).backward
        for loss in ("eager", "inplace", "chunked")
    ]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 3
    tokens = 4 * 2048 * 32_000
    assert sizes[0] == (2 + 3 * 4) * tokens
    assert loss_bytes(replace(SPEC, batch=4, keeps_output=False)).backward == 3 * 4 * tokens


def test_accumulation_keeps_gradients_during_forward():
    plain, more = (
        estimate_training(replace(SPEC, accumulation=n)).phases["forward"] for n in (1, 4)
    )
    assert more - plain == 2 * LLAMA.parameter_count()
    filled = estimate_training(replace(SPEC, set_to_none=False)).phases["forward"]
    assert filled == more


def test_no_sync_keeps_whole_gradients_under_zero():
    plan = Parallel(data=8, zero=2)
    synced, whole = (
        estimate_training(replace(SPEC, parallel=plan, accumulation=4, no_sync=n)).phases["forward"]
        for n in (False, True)
    )
    assert whole - synced == pytest.approx(2 * LLAMA.parameter_count() * 7 / 8, abs=8)


def test_ddp_holds_its_buckets_unless_gradients_are_views():
    ddp, views = (
        estimate_training(replace(SPEC, parallel=Parallel(data=8, gradients_as_views=v))).terms
        for v in (False, True)
    )
    assert (
        ddp["reduction_buckets"] == 2 * LLAMA.parameter_count() and "reduction_buckets" not in views
    )


def test_fsdp_gathers_layers_and_holds_all_without_resharding():
    gathered = [
        estimate_training(replace(SPEC, parallel=Parallel(data=8, zero=3, **options))).terms[
            "gathered_layers"
        ]
        for options in ({"prefetch": 0}, {"prefetch": 1}, {"reshard": False})
    ]
    assert gathered == sorted(gathered)
    assert gathered[2] > 2 * sum(m.parameters for m in matrices(LLAMA) if m.layered)


def test_tensor_parallel_divides_matrices_and_pipeline_layers():
    whole = parts(SPEC)["parameters"]
    assert parts(replace(SPEC, parallel=Parallel(tensor=8)))["parameters"] == pytest.approx(
        whole / 8, rel=0.001
    )
    staged = parts(replace(SPEC, parallel=Parallel(pipeline=4)))["parameters"]
    assert whole / 4 < staged < whole / 4 + 2 * 2 * 32_000 * 4096


def test_a_pipelines_first_stage_holds_as_many_microbatches_as_there_are_stages():
    many, few = (
        parts(replace(SPEC, parallel=Parallel(pipeline=4, microbatches=n)))["activations"]
        for n in (8, 1)
    )
    assert many > 2.5 * few


def test_offloaded_tensors_are_not_on_the_device():
    assert parts(replace(SPEC, offload_optimizer=True))["optimizer_state"] == 0
    offloaded = estimate_training(replace(SPEC, offload_optimizer=True, offload_parameters=True))
    assert offloaded.components["parameters"] == 0 and offloaded.terms["gathered_layers"] > 0


def test_lora_trains_little_and_keeps_less():
    lora = replace(SPEC, precision="bf16", lora_rank=8)
    adapters = 8 * 4 * (4096 + 4096) * 32
    assert (
        parts(lora)["gradients"] == 4 * adapters and parts(lora)["optimizer_state"] == 8 * adapters
    )
    assert (
        layer_saved(lora).whole["norms"]
        < layer_saved(replace(SPEC, precision="bf16")).whole["norms"]
    )


def test_mixtures_hold_all_experts_and_run_some():
    mixtral, dense = preset("mixtral-8x7b"), preset("mistral-7b")
    spec = replace(SPEC, model=mixtral)
    assert parts(spec)["parameters"] > 6 * parts(replace(SPEC, model=dense))["parameters"]
    one = layer_saved(replace(SPEC, model=dense)).split
    assert layer_saved(spec).split["ffn"] == 2 * (one["ffn"] + one["ffn_hidden"])


@pytest.mark.parametrize("name", ["resnet-50", "microsoft/resnet-50", "resnet50"])
def test_a_family_that_the_formula_does_not_know_gets_no_number(name):
    with pytest.raises(UnknownModelError, match="be traced"):
        preset(name)
    with pytest.raises(UnknownModelError, match="pip install torch transformers"):
        from_config({"model_type": "resnet", "hidden_sizes": [256, 512]})


def test_a_limit_alone_counts_the_context_and_the_allocators_part():
    estimate = estimate_training(SPEC, limit_bytes=80 * 2**30)
    assert estimate.peak_device_bytes > estimate.peak_reserved_bytes > estimate.peak_allocated_bytes


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_estimated_and_grows_with_its_batch(name):
    small, large = (estimate_training(TrainingSpec(PRESETS[name], batch, 128)) for batch in (1, 16))
    assert small.peak_allocated_bytes <= large.peak_allocated_bytes
    assert (
        small.components["parameters"]
        == large.components["parameters"]
        == 4 * PRESETS[name].parameter_count()
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"precision": "fp3"}, "fp3"),
        ({"optimizer": "magic"}, "magic"),
        ({"gpu": "voodoo"}, "voodoo"),
        ({"quantised": "nf4"}, "lora_rank"),
        ({"lora_rank": 8, "lora_targets": ("c_attn",)}, "c_attn"),
        ({"sequence": 0}, "sequence is 0"),
        ({"lora_rank": 8, "quantised": "int3"}, "int3"),
    ],
)
def test_it_names_an_invalid_option(options, words):
    with pytest.raises(EstimateError, match=words):
        replace(SPEC, **options)


@pytest.mark.parametrize(
    ("options", "words"), [({"data": 0}, "data is 0"), ({"zero": 4}, "zero is 4")]
)
def test_an_invalid_plan_is_refused(options, words):
    with pytest.raises(EstimateError, match=words):
        Parallel(**options)


def test_fsdp_holds_no_gathered_layers_or_buckets_in_the_optimizers_step():
    sharded = replace(mixed_llama(), implementation="fused", parallel=Parallel(data=8, zero=3))
    estimate = estimate_training(sharded)
    held = sum(estimate.components[name] for name in ("parameters", "gradients", "optimizer_state"))
    workspace = estimate.terms["cublas_workspace"]
    assert estimate.terms["gathered_layers"] > 0
    assert estimate.phases["optimizer"] == pytest.approx(held + workspace, abs=8)


def test_fsdp_has_fp32_shards_and_casts_no_weight_again():
    stages = [
        replace(mixed_llama(), precision="amp", parallel=Parallel(data=8, zero=zero))
        for zero in (2, 3)
    ]
    zero_2, fsdp = (estimate_training(spec) for spec in stages)
    count = LLAMA.parameter_count()
    assert fsdp.components["parameters"] == pytest.approx(4 * count / 8, rel=1e-6)
    assert fsdp.components["gradients"] == pytest.approx(4 * count / 8, rel=1e-6)
    assert "weight_casts" in zero_2.terms and "weight_casts" not in fsdp.terms


def test_fsdp_holds_frozen_shards_in_fp32_too():
    spec = replace(mixed_llama(), precision="bf16", lora_rank=8)
    alone = parts(spec)["parameters"]
    sharded = parts(replace(spec, parallel=Parallel(data=2, zero=3)))["parameters"]
    assert sharded == pytest.approx(1.5 * alone, rel=0.01)  # six bytes on two ranks
    quantised = replace(spec, quantised="nf4", parallel=Parallel(data=2, zero=3))
    assert parts(quantised)["parameters"] == pytest.approx(
        parts(replace(spec, quantised="nf4"))["parameters"] / 2, rel=0.01
    )


def mixed_llama() -> TrainingSpec:
    return TrainingSpec(LLAMA, 1, 512, precision="mixed", checkpointing="full")
