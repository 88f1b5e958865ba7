"""The largest batch, tables, and advice: each answer is checked by estimating it again."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from memagent.errors import EstimateError
from memagent.estimator.changes import advise
from memagent.estimator.formula import estimate_training
from memagent.estimator.parallel import Parallel
from memagent.estimator.presets import preset
from memagent.estimator.search import largest_batch, sweep
from memagent.estimator.spec import TrainingSpec
from memagent.units import GIB

GPT2 = TrainingSpec(preset("gpt2"), 1, 1024, gpu="rtx4090")
LLAMA = TrainingSpec(preset("llama-7b"), 4, 2048, precision="mixed", gpu="a100")


@pytest.mark.parametrize(
    "options", [{}, {"precision": "fp32"}, {"checkpointing": "full"}, {"loss": "chunked"}, {"attention": "eager"}]
)
def test_the_largest_batch_fits_and_one_more_does_not(options):
    spec = replace(GPT2, **options)
    batch = largest_batch(spec)
    assert batch >= 1
    assert estimate_training(replace(spec, batch=batch)).fits
    assert not estimate_training(replace(spec, batch=batch + 1)).fits


def test_it_can_be_asked_for_multiples_and_for_certainty():
    batch = largest_batch(GPT2)
    assert largest_batch(GPT2, multiple_of=4) == batch - batch % 4
    assert 0 < largest_batch(GPT2, sure=True) <= batch


def test_nothing_fits_into_too_little():
    assert largest_batch(LLAMA, 8 * GIB) == 0


def test_a_search_that_cannot_end_says_so():
    with pytest.raises(EstimateError, match="no limit"):
        largest_batch(replace(GPT2, gpu=None))
    with pytest.raises(EstimateError, match="still fits"):
        largest_batch(TrainingSpec(preset("resnet-50")), GIB)


def test_a_sweep_has_a_cell_for_each_batch_and_sequence():
    cells = list(sweep(GPT2, batches=(1, 2, 4), sequences=(256, 512)))
    assert [(cell.sequence, cell.batch) for cell in cells] == [
        (256, 1),
        (256, 2),
        (256, 4),
        (512, 1),
        (512, 2),
        (512, 4),
    ]
    assert all(cell.estimate.fits is not None for cell in cells)
    assert [cell.batch for cell in sweep(GPT2, batches=[3])] == [3]


def test_advice_saves_what_it_says_it_saves():
    eager = replace(GPT2, batch=32, attention="eager", precision="fp32", use_cache=False)
    now = estimate_training(eager).needed_bytes
    items = {item.change: item.saving_bytes for item in advise(eager, at_most=50)}
    for change, options in {
        "Attention by SDPA or FlashAttention": {"attention": "sdpa"},
        "Autocast to bf16": {"precision": "amp"},
        "Activation checkpointing": {"checkpointing": "full"},
        "Loss in chunks": {"loss": "chunked"},
    }.items():
        assert items[change] == now - estimate_training(replace(eager, **options)).needed_bytes > 0


def test_advice_that_makes_it_fit_comes_first_and_cheapest():
    items = advise(LLAMA, at_most=50)
    now = estimate_training(LLAMA)
    fitting = [now.needed_bytes - item.saving_bytes <= now.limit_bytes for item in items]
    assert fitting == sorted(fitting, reverse=True) and any(fitting)
    names = [item.change for item in items]
    assert next(name for name in names if "LoRA" in name) == "LoRA of rank 16"
    assert {"8-bit Adam", "Activation checkpointing", "QLoRA: NF4 weights with LoRA"} <= set(names)
    assert any("FSDP" in name for name in names) and any("accumulation" in name for name in names)


def test_each_advice_has_a_cost_and_lines_of_code():
    for item in advise(LLAMA, at_most=50):
        assert item.change and item.cost and item.code and item.saving_bytes > 0


def test_what_is_done_already_is_not_advised():
    done = replace(
        LLAMA, precision="bf16", checkpointing="full", loss="chunked", use_cache=False, optimizer="adamw8bit", offload_optimizer=True,
        parallel=Parallel(data=8, zero=3), batch=1,
    )  # fmt: skip
    names = " ".join(item.change for item in advise(done, at_most=50))
    assert not re.search("checkpointing|SDPA|chunks|cache|8-bit|ZeRO|FSDP|host|accumulation|bf16", names)


def test_a_smaller_batch_is_a_divisor_that_fits_with_accumulation():
    spec = replace(GPT2, batch=32)
    item = next(item for item in advise(spec, at_most=50) if "accumulation" in item.change)
    batch, steps = map(int, re.match(r"A batch of (\d+) with (\d+) times", item.change).groups())
    assert batch * steps == 32
    assert estimate_training(replace(spec, batch=batch, accumulation=steps)).fits


def test_lora_is_advised_by_the_names_of_the_familys_own_layers():
    names = [item.change for item in advise(replace(GPT2, batch=1, model=preset("gpt2-xl")), at_most=50)]
    assert "LoRA of rank 16" in names


def test_freeing_gradients_is_advised_where_they_are_kept():
    names = [item.change for item in advise(replace(LLAMA, set_to_none=False), at_most=50)]
    assert "Free gradients between steps" in names
