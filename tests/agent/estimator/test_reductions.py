"""Scratch memory of sums over rows: sizes read on an A100, and what the formula makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.transients import layer_backward
from memagent.estimator.reductions import outer_sum_bytes
from memagent.units import MIB


@pytest.mark.parametrize(
    ("rows", "columns", "mebibytes"), [(2048, 4096, 64), (3200, 3072, 75), (1576, 4096, 50)]
)
def test_many_rows_are_added_up_in_parts(rows: int, columns: int, mebibytes: int) -> None:
    assert outer_sum_bytes(rows, columns) == pytest.approx(mebibytes * MIB, rel=1e-4)


@pytest.mark.parametrize(("rows", "columns"), [(8, 4096), (0, 64), (2048, 0)])
def test_few_rows_are_added_up_at_once(rows: int, columns: int) -> None:
    assert outer_sum_bytes(rows, columns) == 0


def test_a_layer_of_images_takes_more_for_a_bias_than_for_its_widest_gradients() -> None:
    images = TrainingSpec(preset("vit-b-32"), batch=64, precision="amp")
    widest = layer_backward(images)
    on_host = layer_backward(replace(images, device="cpu"))
    assert widest.working > 1.5 * widest.pair and widest.tail > on_host.tail
    assert on_host.working == on_host.pair == widest.pair


def test_a_model_without_biases_takes_nothing_for_them() -> None:
    text = TrainingSpec(preset("llama-3-8b"), batch=4)
    widest = layer_backward(text)
    assert widest.working == widest.pair and widest == layer_backward(replace(text, device="cpu"))
