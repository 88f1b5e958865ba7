"""Choices among equal and different scores, on CPU tensors in place of the device's."""

from __future__ import annotations

import pytest
import torch

from memagent.rehearsal.choices import spread_choices

EQUAL = torch.full((4, 4), 0.25)
DIFFERENT = torch.tensor([[3.0, 1, 2, 0], [0, 1, 2, 3], [5, 5, 1, 5], [0, 0, 0, 1]])


@pytest.mark.parametrize("has_scores", [False, True])
def test_rows_of_equal_scores_take_turns(has_scores: bool) -> None:
    output = EQUAL.topk(2)
    spread_choices("topk", (EQUAL, 2), output, has_scores=has_scores)
    assert output.indices.tolist() == [[0, 1], [2, 3], [0, 1], [2, 3]]


def test_different_scores_are_chosen_as_torch_does() -> None:
    output = DIFFERENT.topk(3)
    spread_choices("topk", (DIFFERENT, 3), output, has_scores=True)
    assert output.indices[:2].tolist() == [[0, 2, 1], [3, 2, 1]]
    assert sorted(output.indices[2].tolist()) == [0, 1, 3]
    assert output.indices[3, 0] == 3


@pytest.mark.parametrize("keepdim", [False, True])
def test_the_largest_along_another_dimension(keepdim: bool) -> None:
    scores = torch.zeros(3, 2)
    output = scores.max(0, keepdim)
    spread_choices("max", (scores, 0, keepdim), output, has_scores=True)
    assert output.indices.flatten().tolist() == [0, 1]


def test_one_index_of_each_row() -> None:
    output = DIFFERENT.argmax(-1)
    spread_choices("argmax", (DIFFERENT, -1), output, has_scores=True)
    assert output.tolist() == [0, 3, 3, 3]


@pytest.mark.parametrize(
    ("operator", "args"),
    [("max", (EQUAL,)), ("max", (EQUAL, DIFFERENT)), ("argmax", (EQUAL,)), ("relu", (EQUAL,))],
)
def test_other_operators_are_left_alone(operator: str, args: tuple[torch.Tensor, ...]) -> None:
    output = getattr(torch, operator)(*args)
    expected = output.clone()
    spread_choices(operator, args, output, has_scores=True)
    assert torch.equal(output, expected)
