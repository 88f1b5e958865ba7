"""The profile of a traced step foretells the peak with blocks that run again."""

from __future__ import annotations

import pytest
import torch

from memagent.estimator.trace.tracing import record_trace
from memagent.fitting.blocks import ModelBlock
from memagent.fitting.profile import saved_by_module, step_profile
from memagent.fitting.recompute import recompute
from tests.agent.fitting.conftest import Residual, convnet


def traced(model: torch.nn.Module, inputs: torch.Tensor):
    return record_trace(model, inputs, optimizer="sgd")


@pytest.mark.parametrize("chosen", [(0,), (0, 1), (2, 4), (5,), (0, 1, 2, 3, 4, 5)])
def test_the_peak_is_that_of_a_trace(residual: Residual, rows: torch.Tensor, chosen) -> None:
    blocks = [ModelBlock(f"blocks.{index}") for index in range(6)]
    profile = step_profile(traced(residual, rows), blocks)
    undo = recompute(residual, [blocks[index] for index in chosen])
    peak = traced(residual, rows).peak_bytes
    undo()
    # the last block's recomputation stops before it returns
    assert peak <= profile.peak_bytes(chosen) <= 1.05 * peak
    assert peak < 0.99 * profile.peak_bytes(())


def test_runs_of_layers_are_profiled_as_blocks(images: torch.Tensor) -> None:
    model = convnet()
    runs = [ModelBlock("", 0, 2), ModelBlock("", 3, 5)]
    profile = step_profile(traced(model, images), runs)
    undo = recompute(model, runs[:1])
    peak = traced(model, images).peak_bytes
    undo()
    assert profile.peak_bytes((0,)) == pytest.approx(peak, rel=0.02)


@pytest.mark.parametrize("chosen", [(0,), (1,), (0, 1)])
def test_a_block_holds_arguments_that_would_be_free(images: torch.Tensor, chosen) -> None:
    """The second run's ReLU keeps what it returns: running again, the run keeps what it is given."""
    layers = [torch.nn.Conv2d(3, 32, 1), torch.nn.BatchNorm2d(32), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Conv2d(32, 2, 1), torch.nn.Flatten())
    runs = [ModelBlock("", 0, 1), ModelBlock("", 2, 3)]
    profile = step_profile(traced(model, images), runs)
    undo = recompute(model, [runs[index] for index in chosen])
    peak = traced(model, images).peak_bytes
    undo()
    assert profile.peak_bytes(chosen) == pytest.approx(peak, rel=0.02)


def test_a_block_keeps_what_its_modules_keep(residual: Residual, rows: torch.Tensor) -> None:
    trace = traced(residual, rows)
    (block,) = step_profile(trace, [ModelBlock("blocks.2")]).blocks
    inside = sum(size for path, size in saved_by_module(trace).items() if block.block.holds(path))
    returned = rows.shape[0] * rows.shape[1] * 64 * 4
    assert block.saved_bytes == inside - returned
    assert block.forward_bytes >= block.saved_bytes


class Scaled(torch.nn.Module):
    """Keeps one tensor and no parameter; `last` outlives backward if the script wants it."""

    def __init__(self, *, has_last: bool) -> None:
        super().__init__()
        self.inner = torch.nn.Sigmoid()
        self.has_last = has_last

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        output = self.inner(values)
        if self.has_last:
            self.last = output
        return output * 2


@pytest.mark.parametrize(("has_last", "profiled"), [(False, 1), (True, 0)])
def test_a_block_without_parameters_may_keep_one_tensor(has_last: bool, profiled: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), Scaled(has_last=has_last))
    profile = step_profile(traced(model, torch.ones(256, 8)), [ModelBlock("1")])
    assert len(profile.blocks) == profiled


def test_operations_are_those_of_the_products(residual: Residual, rows: torch.Tensor) -> None:
    """Two for each weight and row, in either direction of the block (torch's own counter)."""
    trace = traced(residual, rows)
    (block,) = step_profile(trace, [ModelBlock("blocks.0")]).blocks
    products = 2 * (2 * rows.shape[0] * rows.shape[1] * 64 * 256)
    assert trace.operations["blocks.0.up"] * 2 == 2 * products  # two steps were traced
    assert 2 * products < block.operations < 2.2 * products


def test_the_share_of_all_blocks_is_a_third_at_most(residual: Residual, rows: torch.Tensor) -> None:
    blocks = [ModelBlock(f"blocks.{index}") for index in range(6)]
    profile = step_profile(traced(residual, rows), blocks)
    assert 0.25 < profile.share(range(6)) < 1 / 3
    assert profile.share(()) == 0
