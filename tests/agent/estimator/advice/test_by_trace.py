"""Advice for a traced step: each saving is that of another estimate."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from memagent.estimator import engine
from memagent.estimator.advice.by_trace import advise
from memagent.estimator.advice.catalog import BY_KEY, KEYS_BY_NAME
from memagent.estimator.advice.change import TracedStep
from memagent.estimator.api import device_fields, estimate
from memagent.estimator.model_edits import EditedModel
from memagent.estimator.request import TraceRequest
from memagent.estimator.trace.isolation import can_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="this system cannot fork a tracing process")
MIB = 2**20
INPUTS = ((2048, 128), "float32")


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.down(torch.nn.functional.gelu(self.up(inputs)))


class Stack(torch.nn.Module):
    def __init__(self, depth: int = 4, width: int = 128) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return inputs


class Language(torch.nn.Module):
    """Attention whose scores are held, and a vocabulary that is large for it."""

    def __init__(self, *, fused_attention: bool = False) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(4000, 64)
        self.head = torch.nn.Linear(64, 4000)
        self.fused_attention = fused_attention

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids).unsqueeze(1)
        if self.fused_attention:
            return self.head(torch.nn.functional.scaled_dot_product_attention(x, x, x).squeeze(1))
        return self.head(((x @ x.transpose(-1, -2)).softmax(-1) @ x).squeeze(1))


def mean(output: torch.Tensor) -> torch.Tensor:
    return output.mean()


def next_token(output: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(output.flatten(0, 1), ids.flatten())


def savings(result) -> dict[str, int]:
    return {item.change: item.saving_bytes for item in result.advice}


@pytest.fixture(scope="module")
def stack():
    """The stack's estimate with advice, on a card."""
    return estimate(Stack, INPUTS, loss=mean, advice=True, gpu="a100")


def estimate_stack(**options):
    return estimate(Stack, INPUTS, **{"loss": mean, "gpu": "a100", **options})


def test_savings_are_those_of_another_estimate(stack):
    saved = savings(stack)
    need = stack.needed_bytes
    assert (
        saved["Activation checkpointing"]
        == need - estimate_stack(checkpointing="full").needed_bytes
    )
    assert saved["Autocast to bf16"] == need - estimate_stack(autocast="bf16").needed_bytes
    half = estimate(Stack, ((1024, 128), "float32"), loss=mean, gpu="a100", accumulation=2)
    assert saved["Smaller batch, accumulated"] == need - half.needed_bytes
    assert list(saved.values()) == sorted(saved.values(), reverse=True)
    assert set(saved) <= set(KEYS_BY_NAME)


def test_a_rewritten_trace_equals_the_trace_of_the_change():
    plain = TraceRequest(Stack, INPUTS, loss=mean, **device_fields(gpu="a100"))
    step = TracedStep.of(plain, engine.record(plain))
    (without,) = BY_KEY["optimizer_step"].apply_to_trace(step).rewrites
    fused = replace(plain, optimizer=lambda p: torch.optim.AdamW(p, fused=True))
    rewritten, run = engine.estimate_trace(plain, without(step.trace)), engine.estimate(fused)
    counters = 16 * 512  # the fused step counts on the device, for each parameter
    assert rewritten.phases["optimizer"] == run.phases["optimizer"] - counters


def test_bf16_weights_are_traced_with_the_edited_model(stack):
    half = estimate(
        lambda: Stack().to(torch.bfloat16), (INPUTS[0], "bfloat16"), loss=mean, gpu="a100"
    )
    assert (
        savings(stack)["Weights, gradients and states in bf16"]
        == stack.needed_bytes - half.needed_bytes
    )


def test_lora_trains_adapters_of_a_frozen_model():
    plain = TraceRequest(
        lambda: Stack(width=512), ((8, 512), "float32"), loss=mean, **device_fields()
    )
    change = BY_KEY["lora"].apply_to_trace(TracedStep.of(plain, engine.record(plain)))
    lora = replace(plain, model=EditedModel(plain.model, change.edits), **change.fields)
    before, after = (engine.estimate(request).components for request in (plain, lora))
    adapters = 4 * 2 * 16 * (512 + 2048) * 4
    assert after["gradients"] == adapters and before["gradients"] > 10 * adapters
    assert after["parameters"] == before["parameters"] // 2 + adapters


def test_eight_bit_states_are_a_quarter_of_fp32_ones():
    plain = TraceRequest(
        lambda: torch.nn.Linear(2048, 2048, bias=False), ((1, 2048), "float32"), loss=mean
    )
    step = TracedStep.of(plain, engine.record(plain))
    (smaller,) = BY_KEY["eight_bit"].apply_to_trace(step).rewrites
    before, after = (
        engine.estimate_trace(plain, step.trace),
        engine.estimate_trace(plain, smaller(step.trace)),
    )
    assert after.components["optimizer_state"] == pytest.approx(
        before.components["optimizer_state"] / 4, rel=0.02
    )


def test_sharding_divides_what_its_stage_says():
    plain = TraceRequest(Stack, INPUTS, loss=mean)
    step = TracedStep.of(plain, engine.record(plain))
    before = engine.estimate_trace(plain, step.trace).components
    for stage, divided in (
        (1, {"optimizer_state"}),
        (2, {"optimizer_state", "gradients"}),
        (3, {"optimizer_state", "gradients", "parameters"}),
    ):
        (rewrite,) = BY_KEY[f"zero_{stage}"].apply_to_trace(step).rewrites
        after = engine.estimate_trace(plain, rewrite(step.trace)).components
        for name in ("parameters", "gradients", "optimizer_state"):
            share = 8 if name in divided else 1
            assert after[name] == pytest.approx(before[name] / share, rel=0.01)


def test_it_finds_scores_and_logits_and_advises_nothing_else():
    inputs = ((4, 512), "int64")
    eager = savings(estimate(Language, inputs, loss=next_token, advice=True))
    assert {"Attention by SDPA or FlashAttention", "Loss in chunks"} <= set(eager)
    flash = savings(
        estimate(lambda: Language(fused_attention=True), inputs, loss=next_token, advice=True)
    )
    assert "Attention by SDPA or FlashAttention" not in flash and "Loss in chunks" in flash
    scores = 4 * 512 * 512 * 4
    assert eager["Attention by SDPA or FlashAttention"] >= scores


def test_freeing_gradients_is_advised_if_they_are_zeroed_in_place():
    wide = lambda **options: estimate(  # noqa: E731
        lambda: Stack(width=256), ((256, 256), "float32"), loss=mean, context_bytes=0, **options
    )
    zeroed, freed = wide(set_to_none=False, advice=True), wide(advice=True)
    assert (
        savings(zeroed)["Gradients freed between steps"]
        == zeroed.needed_bytes - freed.needed_bytes
        > MIB
    )
    assert zeroed.phases["forward"] - freed.phases["forward"] == freed.components["gradients"]
    assert "Gradients freed between steps" not in savings(freed)


def test_an_applied_change_is_not_advised():
    result = estimate_stack(
        checkpointing="full",
        autocast="bf16",
        optimizer="sgd",
        advice=True,
        allocator="expandable_segments:True",
    )
    assert not set(savings(result)) & {
        "Activation checkpointing",
        "Autocast to bf16",
        "8-bit Adam",
        "Expandable segments in the allocator",
        "ZeRO-1",
        "Attention by SDPA or FlashAttention",
        "Loss in chunks",
        "QLoRA: LoRA on NF4 weights",
    }


@pytest.mark.long
def test_checkpointing_is_not_advised_to_a_model_that_recomputes():
    class Recomputing(Stack):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                inputs = torch.utils.checkpoint.checkpoint(block, inputs, use_reentrant=False)
            return inputs

    result = estimate(
        Recomputing, INPUTS, loss=mean, context_bytes=0, advice=True
    )  # next to a context all savings are small
    assert "Activation checkpointing" not in savings(result) and result.advice


def test_the_cpu_gets_no_advice_about_gpus():
    result = estimate(Stack, INPUTS, loss=mean, device="cpu", advice=True)
    assert set(savings(result)) <= {
        "Activation checkpointing",
        "Smaller batch, accumulated",
        "Adafactor",
    }


def test_a_set_that_fits_comes_first_if_no_change_alone_is_enough():
    result = estimate_stack(gpu=None, context_bytes=0, limit_bytes=28 * MIB, advice=True)
    first = result.advice[0]
    assert result.fits is False and first.change.startswith("Together: ")
    assert result.needed_bytes - first.saving_bytes <= 28 * MIB
    assert all(
        name in KEYS_BY_NAME for name in first.change.removeprefix("Together: ").split(" + ")
    )


@pytest.mark.long
def test_the_batch_is_cut_into_as_few_parts_as_fit(stack):
    quarter = estimate(
        Stack, ((512, 128), "float32"), loss=mean, gpu="a100", accumulation=4
    ).needed_bytes
    half = estimate(
        Stack, ((1024, 128), "float32"), loss=mean, gpu="a100", accumulation=2
    ).needed_bytes
    result = estimate_stack(
        gpu=None,
        limit_bytes=(quarter + half) // 2,
        context_bytes=stack.components["context"],
        advice=True,
    )
    item = next(item for item in result.advice if item.change == "Smaller batch, accumulated")
    assert (
        item.cost.startswith("4 times batch 512 in place of batch 2048")
        and "range" not in item.code
    )


@pytest.mark.long
def test_no_more_is_traced_than_allowed(monkeypatch):
    plain = TraceRequest(Stack, INPUTS, loss=mean, **device_fields(gpu="a100", context_bytes=0))
    trace = engine.record(plain)
    traced = []
    record = engine.record
    monkeypatch.setattr(
        engine, "record", lambda request: (traced.append(request), record(request))[1]
    )
    now = engine.estimate_trace(plain, trace)
    advice = advise(plain, now, trace, max_new_traces=1)
    assert len(traced) == 1 and "Paged 8-bit Adam" in {item.change for item in advice}


@pytest.mark.long
def test_a_model_of_transformers_gets_snippets_for_transformers():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPT2Config(
        n_layer=4,
        n_embd=256,
        n_head=8,
        vocab_size=2000,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="eager",
    )
    ids = ((4, 512), "int64")
    inputs = {"input_ids": ids, "labels": ids}
    result = estimate(lambda: transformers.GPT2LMHeadModel(config), inputs, advice=True)
    lines = {item.change: item.code for item in result.advice}
    assert lines["Attention by SDPA or FlashAttention"] == 'model.set_attn_implementation("sdpa")'
    assert "for block in model.transformer.h:" in lines["FSDP (ZeRO-3)"]
    assert (
        'target_modules=["c_attn"]' in lines["LoRA of rank 16"]
        and "BitsAndBytesConfig" in lines["QLoRA: LoRA on NF4 weights"]
    )
    saved = savings(result)
    assert saved["QLoRA: LoRA on NF4 weights"] > saved["LoRA of rank 16"] > 0
    sdpa = transformers.GPT2Config(**{**config.to_dict(), "attn_implementation": "sdpa"})
    really = (
        result.needed_bytes
        - estimate(lambda: transformers.GPT2LMHeadModel(sdpa), inputs).needed_bytes
    )
    assert saved["Attention by SDPA or FlashAttention"] == pytest.approx(really, rel=0.1)
