"""Batches in parts: the gradients of the whole."""

from __future__ import annotations

import pytest
import torch

from memagent.fitting.batches import batch_size, divided, weights_of


def test_every_tensor_of_the_batch_is_divided() -> None:
    mask = torch.ones(5, 5)
    batch = {"inputs": torch.arange(4), "extra": (torch.zeros(4, 2), mask), "flag": True}
    first, second = divided(batch, 2, size=4)
    assert first["inputs"].tolist() == [0, 1]
    assert second["inputs"].tolist() == [2, 3]
    assert second["extra"][0].shape == (2, 2)
    assert second["extra"][1] is mask
    assert second["flag"] is True


def test_parts_of_a_last_batch_are_as_equal_as_possible() -> None:
    assert [len(part) for part in divided(torch.zeros(5), 3, size=5)] == [2, 2, 1]
    assert weights_of(divided(torch.zeros(5), 3, size=5), is_shifted=False) == [0.4, 0.4, 0.2]


@pytest.mark.parametrize(("is_shifted", "weights"), [(False, [0.75, 0.25]), (True, [1.0, 0.0])])
def test_ignored_labels_have_no_weight(is_shifted: bool, weights: list[float]) -> None:
    labels = torch.tensor([[1, 2, 3], [4, -100, -100]])
    assert weights_of(divided({"labels": labels}, 2, 2), is_shifted=is_shifted) == weights


def test_the_size_is_that_of_the_first_tensor() -> None:
    assert batch_size({"a": 1, "b": [torch.zeros(3, 2)]}) == 3
    assert batch_size({"a": 1}) is None
