"""The largest batch, tables, and advice: each answer is checked by estimating it again."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from memagent.errors import EstimateError
from memagent.estimator.advice import by_formula
from memagent.estimator.advice.catalog import CHANGES, smallest_set
from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.spec import Parallel, TrainingSpec
from memagent.estimator.formula.training import estimate_formula, estimate_training
from memagent.estimator.request import FormulaRequest
from memagent.estimator.search import grid, largest_batch, largest_count, safe_batch
from memagent.units import GIB
from memagent.wire.messages import AdviceItem

GPT2 = TrainingSpec(preset("gpt2"), 1, 1024, gpu="rtx4090")
LLAMA = TrainingSpec(preset("llama-7b"), 4, 2048, precision="mixed", gpu="a100")


def advise(spec: TrainingSpec, limit_bytes: int | None = None) -> tuple[AdviceItem, ...]:
    request = FormulaRequest(spec, limit_bytes)
    return by_formula.advise(request, estimate_formula(request))


def largest(spec: TrainingSpec, limit_bytes: int | None = None, **options: int) -> int:
    return largest_batch(FormulaRequest(spec, limit_bytes), estimate_formula, **options).batch


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"precision": "fp32"},
        {"checkpointing": "full"},
        {"loss": "chunked"},
        {"attention": "eager"},
    ],
)
def test_the_largest_batch_fits_and_one_more_does_not(options):
    spec = replace(GPT2, **options)
    result = largest_batch(FormulaRequest(spec), estimate_formula)
    assert result.batch >= 1
    assert estimate_training(replace(spec, batch=result.batch)).fits
    assert not estimate_training(replace(spec, batch=result.batch + 1)).fits
    assert result.too_large == result.batch + 1
    assert result.estimate == estimate_training(replace(spec, batch=result.batch))


def test_a_safe_batch_is_at_most_the_largest_and_its_interval_fits():
    batch = largest(GPT2)
    safe = safe_batch(FormulaRequest(GPT2), estimate_formula, max_batch=batch)
    assert 0 < safe <= batch
    found = estimate_training(replace(GPT2, batch=safe))
    assert found.intervals["device"][1] <= found.limit_bytes


def test_a_maximum_ends_the_search():
    result = largest_batch(FormulaRequest(GPT2), estimate_formula, max_batch=2)
    assert (result.batch, result.too_large) == (2, None)


def test_nothing_fits_into_too_little():
    assert largest(LLAMA, 8 * GIB) == 0


def test_a_search_that_cannot_end_says_so():
    with pytest.raises(EstimateError, match="no limit"):
        largest(replace(GPT2, gpu=None))
    with pytest.raises(EstimateError, match="still fits"):
        largest(TrainingSpec(preset("resnet-50")), GIB)


def test_a_grid_has_a_point_for_each_batch_and_sequence():
    points = list(
        grid(FormulaRequest(GPT2), estimate_formula, batches=(1, 2, 4), sequences=(256, 512))
    )
    assert [(point.sequence, point.batch) for point in points] == [
        (256, 1),
        (256, 2),
        (256, 4),
        (512, 1),
        (512, 2),
        (512, 4),
    ]
    assert all(point.estimate.fits is not None for point in points)
    single = list(grid(FormulaRequest(GPT2), estimate_formula, batches=[3]))
    assert [(point.batch, point.sequence) for point in single] == [(3, GPT2.sequence)]


def test_advice_saves_what_it_says_it_saves():
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


def test_advice_is_ranked_by_what_it_saves():
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


def test_what_is_done_already_is_not_advised():
    done = replace(
        LLAMA, precision="bf16", checkpointing="full", loss="chunked", use_cache=False, optimizer="adamw8bit", offload_optimizer=True,
        parallel=Parallel(data=8, zero=3), batch=1,
    )  # fmt: skip
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
            r"(\d+) times batch (\d+) in place of batch 32 \(the largest that fits is (\d+)\)",
            item.cost,
        ).groups(),
    )
    assert batch * steps == 32 and batch <= fitting < 32
    assert estimate_training(replace(spec, batch=batch, accumulation=steps)).fits
    assert fitting == largest(replace(spec, accumulation=2))


def test_where_no_change_alone_is_enough_the_smallest_set_comes_first():
    spec = replace(LLAMA, batch=8, gpu="rtx4090")
    now = estimate_training(spec)
    first, *rest = advise(spec)
    assert (
        first.change.startswith("Together: ")
        and now.needed_bytes - first.saving_bytes <= now.limit_bytes
    )
    on_one_gpu = [item for item in rest if "ZeRO" not in item.change]
    assert all(now.needed_bytes - item.saving_bytes > now.limit_bytes for item in on_one_gpu)
    parts = first.change.removeprefix("Together: ").split(" + ")
    assert len(parts) == 2  # pairs are tried before triples
    codes = {item.change: item.code for item in rest}
    assert all(codes[part] in first.code for part in parts if part != "Smaller batch, accumulated")


def test_no_set_is_named_where_one_change_is_enough_or_all_fits():
    assert not any("Together" in item.change for item in [*advise(LLAMA), *advise(GPT2)])


def test_a_set_can_need_more_gpus_where_nothing_else_is_enough():
    spec = replace(
        LLAMA, model=preset("llama-70b"), batch=1, gpu="a100", lora_rank=8, optimizer="sgd"
    )
    first = advise(spec, 20 * GIB)[0]
    assert first.change.startswith("Together: ") and re.search("ZeRO|on the host", first.change)


@pytest.mark.parametrize("tries", [0, 4000])
def test_a_set_is_one_that_none_can_be_left_out_of(tries):
    needed = {"attention", "checkpointing", "eight_bit"}
    asked = []

    def fits(chosen):
        asked.append(chosen)
        return needed <= {change.key for change in chosen}

    changes = [
        change for change in CHANGES if change.key != "optimizer_step"
    ]  # which excludes the 8-bit one
    found = smallest_set(changes, fits, max_tries=tries)
    assert {change.key for change in found} == needed
    assert smallest_set(CHANGES, lambda chosen: False, max_tries=tries) is None


def test_changes_that_exclude_each_other_are_never_taken_together():
    asked = []
    smallest_set(CHANGES, lambda chosen: bool(asked.append(chosen)), max_tries=4000)
    keys = [{change.key for change in chosen} for chosen in asked]
    assert {"zero_1", "checkpointing"} in keys
    assert not any(
        {"lora", "qlora"} <= chosen or {"eight_bit", "paged"} <= chosen for chosen in keys
    )


@pytest.mark.parametrize("most", [3, 17, 100])
@pytest.mark.parametrize("plateau", [0, 40])
def test_the_largest_count_is_found_whatever_the_line_does(most, plateau):
    for limit in (0, 5, 39, 47, 61, 500):
        needed = {
            count: max(plateau, 2 * count + count * count // 20) for count in range(1, most + 1)
        }
        right = max((count for count in needed if needed[count] <= limit), default=0)
        assert (
            largest_count(
                lambda count, limit=limit, needed=needed: limit - needed[count], maximum=most
            )
            == right
        )


def test_the_largest_count_takes_few_questions_where_needs_are_proportional():
    asked = []
    assert largest_count(lambda count: (asked.append(count), 123_456 - 100 * count)[1]) == 1234
    assert len(asked) <= 8


def test_lora_is_advised_by_the_names_of_the_familys_own_layers():
    names = [item.change for item in advise(replace(GPT2, batch=1, model=preset("gpt2-xl")))]
    assert "LoRA of rank 16" in names


def test_freeing_gradients_is_advised_where_they_are_kept():
    names = [item.change for item in advise(replace(LLAMA, set_to_none=False))]
    assert "Gradients freed between steps" in names
