"""Values of small tensors on the rehearsal device."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from memagent.rehearsal.values import Plan, SmallValues


@pytest.fixture(scope="module")
def seen(rehearse):
    """The values that a script saw."""
    return rehearse("values", "computed")


def test_results_are_those_of_the_cpu(seen) -> None:
    assert (seen["sum"], seen["product"]) == (45, 285)
    assert seen["equal"] == [True, False, True]
    assert seen["assigned"] == [8, 0]


def test_new_memory_reads_as_zeros(seen) -> None:
    assert seen["zeros"] == [0, 0, 0, 0, 0]
    assert seen["empty"] == 0


def test_sizes_that_depend_on_values_are_right(seen) -> None:
    assert seen["nonzero"] == [7, 8, 9]
    assert seen["masked"] == [[8, 9], [0, 1]]
    assert seen["bincount"] == [0, 2, 0, 1]
    assert seen["repeated"] == [0, 1, 1]
    assert seen["unique"] == [1, 3]
    assert seen["histogram"] == [2, 2, 2, 2, 2]
    assert seen["scattered"] == [2, 2, 0, 0]


def test_large_tensors_are_zeros(seen) -> None:
    assert seen["large"] == [0, 0]


def test_a_router_of_unknown_scores_spreads_the_tokens(rehearse) -> None:
    seen = rehearse("experts", "computed")
    assert seen == {**seen, "one_by_one": [1024] * 8, "best": [512] * 8}


def test_a_small_model_learns_and_no_step_is_skipped(seen) -> None:
    assert seen["losses"][-1] < 0.5 * seen["losses"][0]
    assert seen["scale"] == 65536


def test_a_scaler_skips_no_step_of_a_larger_model(rehearse) -> None:
    seen = rehearse("residual", "computed")
    assert seen["scale"] == 65536
    assert seen["loss"] == pytest.approx(math.log(1000), abs=0.1)


@pytest.mark.parametrize("case", ["gpt", "recurrent", "tied"])
def test_values_change_no_byte_of_the_memory(rehearse, case: str) -> None:
    plain, computed = rehearse(case), rehearse(case, "computed")
    for key in ("peak", "held", "reserved"):
        assert computed[key] == plain[key]


@pytest.mark.parametrize("tunes", [False, True])
def test_a_convolution_with_cudnn_benchmark_is_noticed(tunes: bool) -> None:
    with SmallValues() as mode, torch.backends.cudnn.flags(benchmark=tunes):
        torch.relu(torch.ones(3))
        assert not mode.has_convolutions
        nn.Conv2d(3, 4, 3)(torch.ones(1, 3, 8, 8))
    assert (mode.has_convolutions, mode.tunes_convolutions) == (True, tunes)


def test_an_operator_of_higher_order_has_a_plan() -> None:
    operator = torch.ops.higher_order.flex_attention
    assert Plan.of(operator) == Plan("flex_attention", *(False,) * 6)
