"""Advice by formula: each saving is checked by another estimate."""

from __future__ import annotations

import re
from dataclasses import replace

from memagent.estimator.advice import by_formula
from memagent.estimator.formula.parallel import Parallel
from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_formula, estimate_training
from memagent.estimator.request import FormulaRequest
from memagent.estimator.search import largest_batch
from memagent.units import GIB
from memagent.wire.messages import AdviceItem

GPT2 = TrainingSpec(preset("gpt2"), 1, 1024, gpu="rtx4090")
LLAMA = TrainingSpec(preset("llama-7b"), 4, 2048, precision="mixed", gpu="a100")


def advise(spec: TrainingSpec, limit_bytes: int | None = None) -> tuple[AdviceItem, ...]:
    request = FormulaRequest(spec, limit_bytes)
    return by_formula.advise(request, estimate_formula(request))


def largest(spec: TrainingSpec, limit_bytes: int | None = None, **options: int) -> int:
    return largest_batch(FormulaRequest(spec, limit_bytes), estimate_formula, **options).batch


def test_a_saving_is_that_of_the_changed_spec():
    eager = replace(GPT2, batch=32, attention="eager", precision="fp32", use_cache=False)
    now = estimate_training(eager).needed_bytes
    items = {item.change: item.saving_bytes for item in advise(eager)}
    for change, options in {
        "Attention by SDPA or FlashAttention": {"attention": "sdpa"},
        "Autocast to bf16": {"precision": "amp"},
        "Activation checkpointing": {"checkpointing": "full"},
        "Loss in chunks": {"loss": "chunked"},
    }.items():
        assert items[change] == now - estimate_training(replace(eager, **options)).needed_bytes > 0


def test_advice_is_ranked_by_saving():
    items = advise(LLAMA)
    savings = [item.saving_bytes for item in items]
    assert savings == sorted(savings, reverse=True) and savings[-1] > 0
    names = {item.change for item in items}
    assert {
        "8-bit Adam",
        "Paged 8-bit Adam",
        "Activation checkpointing",
        "QLoRA: LoRA on NF4 weights",
        "LoRA of rank 16",
    } <= names
    assert {
        "Smaller batch, accumulated",
        "FSDP (ZeRO-3)",
        "Parameters and states on the host",
    } <= names


def test_each_advice_has_a_cost_and_lines_of_code():
    for item in advise(LLAMA):
        assert item.change and item.cost and item.code and item.saving_bytes > 0


def test_an_applied_change_is_not_advised():
    done = replace(
        LLAMA,
        precision="bf16",
        checkpointing="full",
        loss="chunked",
        use_cache=False,
        optimizer="adamw8bit",
        offload_optimizer=True,
        parallel=Parallel(data=8, zero=3),
        batch=1,
    )
    names = " ".join(item.change for item in advise(done))
    assert not re.search(
        "checkpointing|SDPA|chunks|cache|8-bit|ZeRO|FSDP|Optimizer states|accumulated|bf16", names
    )


def test_a_smaller_batch_is_a_divisor_that_fits_with_accumulation_and_names_the_largest():
    spec = replace(GPT2, batch=32)
    item = next(item for item in advise(spec) if item.change == "Smaller batch, accumulated")
    steps, batch, fitting = map(
        int,
        re.match(
            r"(\d+) times batch (\d+) in place of batch 32 \(the largest that then fits is (\d+)\)",
            item.cost,
        ).groups(),
    )
    assert batch * steps == 32 and batch <= fitting < 32
    assert estimate_training(replace(spec, batch=batch, accumulation=steps)).fits
    assert fitting == largest(replace(spec, accumulation=2))


def test_the_smallest_set_comes_first_if_no_change_alone_is_enough():
    spec = replace(LLAMA, batch=8, gpu="rtx4090")
    now = estimate_training(spec)
    first, *rest = advise(spec)
    assert (
        first.change.startswith("Together: ")
        and now.needed_bytes - first.saving_bytes <= now.limit_bytes
    )
    on_one_gpu = [item for item in rest if "ZeRO" not in item.change]
    assert not any(now.fits_with(item.saving_bytes) for item in on_one_gpu)
    parts = first.change.removeprefix("Together: ").split(" + ")
    assert len(parts) in (2, 3)  # pairs are tried before triples
    codes = {item.change: item.code for item in rest}
    assert all(codes[part] in first.code for part in parts if part != "Smaller batch, accumulated")


def test_there_is_no_set_if_one_change_is_enough_or_the_run_fits():
    one_change = replace(LLAMA, batch=1)
    assert estimate_training(one_change).outcome == "won't fit"
    assert not any("Together" in item.change for item in [*advise(one_change), *advise(GPT2)])


def test_a_set_may_need_more_gpus_if_nothing_else_is_enough():
    spec = replace(
        LLAMA, model=preset("llama-70b"), batch=1, gpu="a100", lora_rank=8, optimizer="sgd"
    )
    first = advise(spec, 20 * GIB)[0]
    assert first.change.startswith("Together: ") and re.search("ZeRO|on the host", first.change)


def test_lora_targets_the_layers_of_the_family():
    names = [item.change for item in advise(replace(GPT2, batch=1, model=preset("gpt2-xl")))]
    assert "LoRA of rank 16" in names


def test_freeing_gradients_is_advised_if_they_are_kept():
    names = [item.change for item in advise(replace(LLAMA, set_to_none=False))]
    assert "Gradients freed between steps" in names
