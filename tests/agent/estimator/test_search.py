"""The largest batch and grids: each answer is checked by another estimate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memagent.errors import EstimateError
from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_formula, estimate_training
from memagent.estimator.request import FormulaRequest
from memagent.estimator.search import grid, largest_batch, largest_count
from memagent.units import GIB

GPT2 = TrainingSpec(preset("gpt2"), 1, 1024, gpu="rtx4090")
LLAMA = TrainingSpec(preset("llama-7b"), 4, 2048, precision="mixed", gpu="a100")


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


def test_the_largest_batch_fits_with_its_whole_interval():
    result = largest_batch(FormulaRequest(GPT2), estimate_formula)
    assert result.estimate.intervals["device"][1] <= result.estimate.limit_bytes
    assert result.outcome == "tight"


def test_a_maximum_ends_the_search():
    result = largest_batch(FormulaRequest(GPT2), estimate_formula, max_batch=2)
    assert (result.batch, result.too_large) == (2, None)


def test_nothing_fits_into_too_little():
    assert largest(LLAMA, 8 * GIB) == 0


def test_an_endless_search_is_an_error():
    with pytest.raises(EstimateError, match="no limit"):
        largest(replace(GPT2, gpu=None))
    with pytest.raises(EstimateError, match="still fits"):
        largest_count(lambda _count: 1)


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


@pytest.mark.parametrize("most", [3, 17, 100])
@pytest.mark.parametrize("plateau", [0, 40])
def test_it_finds_the_largest_count_on_any_curve(most, plateau):
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


def test_it_needs_few_calls_if_needs_are_proportional():
    counts = []
    assert largest_count(lambda count: (counts.append(count), 123_456 - 100 * count)[1]) == 1234
    assert len(counts) <= 8
