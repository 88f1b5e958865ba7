"""Which parts of a model are blocks."""

from __future__ import annotations

import pytest
from torch import nn

from memagent.fitting.blocks import ModelBlock, blocks_of
from tests.agent.fitting.conftest import Residual, convnet


def saved_equally(path: str) -> int:
    """Return the share of a module that keeps little next to the whole."""
    return 100 if not path else 1


def paths_of(model: nn.Module, saved=saved_equally) -> list[str]:
    return [str(block) for block in blocks_of(model, saved)]


def test_entries_of_a_list_are_blocks() -> None:
    assert paths_of(Residual(blocks=3)) == ["blocks.0", "blocks.1", "blocks.2"]


def test_a_block_that_keeps_a_lot_is_divided() -> None:
    model = nn.ModuleDict({"stage": nn.Sequential(Residual(blocks=2), nn.Identity())})
    assert paths_of(model) == ["stage"]
    saved = {"": 100, "stage": 90, "stage.0": 90}
    assert paths_of(model, lambda path: saved.get(path, 1)) == [
        "stage.0.blocks.0",
        "stage.0.blocks.1",
    ]


def test_larger_blocks_are_whole_up_to_a_larger_share() -> None:
    model = nn.ModuleList([nn.Sequential(Residual(blocks=2), nn.Identity()) for _ in range(3)])
    saved = {"": 100} | {f"{n}": 30 for n in range(3)} | {f"{n}.0": 30 for n in range(3)}

    def saved_bytes(path: str) -> int:
        return saved.get(path, 1)

    small = [str(block) for block in blocks_of(model, saved_bytes, 0.125)]
    assert small == [f"{n}.0.blocks.{m}" for n in range(3) for m in range(2)]
    assert [str(block) for block in blocks_of(model, saved_bytes, 0.5)] == ["0", "1", "2"]


def test_a_sequential_of_layers_is_divided_into_runs() -> None:
    # 12 layers; no run starts with an activation that changes its input in place
    assert paths_of(convnet()) == ["[0:3]", "[3:6]", "[6:9]", "[9:12]"]
    shifted = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Tanh())
    assert paths_of(shifted) == ["[0:3]", "[3:4]"]


@pytest.mark.parametrize(
    ("block", "inside", "outside"),
    [
        (ModelBlock("h.1"), ["h.1", "h.1.up"], ["h", "h.10", "h.2.up"]),
        (ModelBlock("features", 3, 5), ["features.3", "features.5.0"], ["features.6", "features"]),
        (ModelBlock("", 0, 1), ["0", "1.weight"], ["2", ""]),
    ],
)
def test_a_block_holds_what_runs_inside(block, inside, outside) -> None:
    assert all(block.holds(path) for path in inside)
    assert not any(block.holds(path) for path in outside)
