"""A GRU is traced without CUDA: its cell has no version for fake tensors."""

from __future__ import annotations

import pytest
import torch

import memagent


@pytest.mark.parametrize("bias", [True, False])
def test_a_cell_keeps_five_values_of_each_unit(bias: bool) -> None:
    cell = torch.nn.GRUCell(8, 64, bias=bias)
    result = memagent.estimate(cell, torch.zeros(4096, 8), optimizer="sgd")
    assert result.method == "trace"
    assert result.components["activations"] >= 4096 * 64 * 4 * 5


def test_layers_are_traced_step_by_step() -> None:
    layers = torch.nn.GRU(8, 16, num_layers=2, batch_first=True, bidirectional=True)
    result = memagent.estimate(layers, torch.zeros(4, 5, 8), loss=lambda o, _: o[0].mean())
    assert result.method == "trace"
