"""Tensors that are created again, longer each time: each step, in turn, or now and then."""

from __future__ import annotations

import torch

from memagent.leaks import census
from memagent.leaks.lengthening import LengtheningTensor, lengthening_tensors


def found(lengths: tuple[int, int, int, int], *, outlives_a_step: bool) -> list[LengtheningTensor]:
    """Look over 160 steps with a tensor of these lengths: first, halfway, before last and last."""
    first, middle, before_last, last = (torch.zeros(length, 8) for length in lengths)
    newest = before_last if outlives_a_step else last
    steps = ((0, first), (80, middle), (159, before_last), (160, newest))
    first_census, halfway, recent, now = (census.take(step, [item]) for step, item in steps)
    return lengthening_tensors(first_census, recent, now, [newest], halfway)


def test_a_tensor_that_each_fiftieth_step_lengthens_is_found() -> None:
    (item,) = found((4, 6, 10, 10), outlives_a_step=True)

    assert item.is_in_turn
    assert item.bytes_per_step == round(6 * 8 * 4 / 160)


def test_a_batch_that_is_longer_by_chance_is_not() -> None:
    assert found((4, 6, 9, 10), outlives_a_step=False) == []


def test_a_tensor_that_grew_in_one_half_alone_is_not() -> None:
    assert found((4, 10, 10, 10), outlives_a_step=True) == []
